"""Expression of the genes of E. coli under many conditions. Ten inputs describe a condition; each output is a gene."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.datasets.published.fetch import RemoteFile, fetch
from pyro_gprn.datasets.record import Dataset

PRECISE_EXPRESSION = RemoteFile(
    "precise/log_tpm.csv",
    "https://raw.githubusercontent.com/SBRG/precise-db/782c252d4e4e6fb7e5d0037b85b1a00b59c6f1fe/data/log_tpm.csv",
    "sha256:278c4e87539fcb85dc480c7899bee2fb00f840cab72c11a86b8c164e59dc2170",
)
PRECISE_SAMPLES = RemoteFile(
    "precise/sample_table.csv",
    None,
    "sha256:50068a6db1df0ca238d402d5884ba8eb25223d000cf2ea0808d406a84775e79e",
    package="pymodulon==0.2.1",
    resource="data/ecoli/sample_table.csv",
)
_DREAM5_SOURCE = (
    "https://raw.githubusercontent.com/JBris/dream5_grn_data/097496d5fdc69e5d1f9c1cfd4b469d7fd37c8b4d/e_coli"
)
DREAM5_EXPRESSION = RemoteFile(
    "dream5/e_coli_expression_data.csv",
    f"{_DREAM5_SOURCE}/e_coli_expression_data.csv",
    "git-blob:74cba0ed84c54f70b38db384d18e1d21bcc28957",
)
DREAM5_CHIPS = RemoteFile(
    "dream5/e_coli_chip_features.csv",
    f"{_DREAM5_SOURCE}/e_coli_chip_features.csv",
    checksum=None,
)
#: The columns of the sample table that describe a condition. Those that differ between replicates are not among them.
PRECISE_CONDITION = (
    "project",
    "Strain Description",
    "Base Media",
    "Carbon Source (g/L)",
    "Nitrogen Source (g/L)",
    "Electron Acceptor",
    "Trace Element Mixture",
    "Supplement",
    "Antibiotic",
    "Evolved Sample",
)
#: The columns of the chip table that describe a condition.
DREAM5_CONDITION = (
    "#Experiment",
    "Perturbations",
    "PerturbationLevels",
    "Treatment",
    "DeletedGenes",
    "OverexpressedGenes",
    "Time",
)
#: The number of inputs, as in the paper.
N_COORDINATES = 10


def load_precise() -> Dataset:
    """Log-TPM of 3,923 genes, ``(278, 3923)``, in the 278 E. coli RNA-seq samples of PRECISE (Sastry et al. 2019).

    The inputs, ``(278, 10)``, are the :func:`principal_coordinates` of the conditions of the samples: project, strain,
    medium, carbon, nitrogen, electron acceptor, trace elements, supplement, antibiotic, evolution. Replicates have the
    same inputs. The inputs are computed from the conditions of all samples, and not from any output.

    This data set can be used where the paper's GeneExp cannot be downloaded.
    :meth:`~pyro_gprn.datasets.Dataset.split` returns 100 random test samples, as many as in the paper; the other 178
    are for training, where the paper has 128 or 256. The samples are chosen one by one, so a test sample may have a
    replicate among the training samples.

    The sample table is published in the package pymodulon 0.2.1. If that is installed, the table is read from there.
    The licence is MIT.

    >>> load_precise()  # doctest: +SKIP
    Dataset 'precise': X (278, 10), Y (278, 3923), 0 missing
    """
    expression = fetch(PRECISE_EXPRESSION)
    samples, by_gene = _read_numbers(expression)
    genes = tuple(gene for (gene,) in _read_columns(expression, ("",)))
    conditions = _read_columns(fetch(PRECISE_SAMPLES), ("Sample ID", *PRECISE_CONDITION))
    if tuple(row[0] for row in conditions) != samples:
        raise ValueError("precise: the sample table and the expression matrix list different samples")
    X = principal_coordinates([row[1:] for row in conditions])
    return Dataset("precise", X, torch.from_numpy(by_gene.T.copy()), _coordinate_names(), genes, (178, 100))


def load_dream5() -> Dataset:
    """Expression of 4,511 genes, ``(805, 4511)``, on 805 E. coli chips: network 3 of DREAM5 (Marbach et al. 2012).

    This is the paper's GeneExp. The paper arranges the outputs as 347×13 (``Y.reshape(-1, 347, 13)``). It does not say
    what its ten inputs are. Here the inputs, ``(805, 10)``, are the :func:`principal_coordinates` of the chip table:
    experiment, perturbations and their levels, treatment, deleted and overexpressed genes, time. Repeats have the same
    inputs. The inputs are computed from the conditions of all chips, and not from any output.

    :meth:`~pyro_gprn.datasets.Dataset.split` returns the paper's split: 256 random chips for training and 100 other
    chips for testing. The paper's second split is ``split(n_train=128)``.

    The checksum of the chip table is not known, so the table is not checked after its download. The address of the
    table contains a commit.

    >>> load_dream5()  # doctest: +SKIP
    Dataset 'dream5': X (805, 10), Y (805, 4511), 0 missing
    """
    genes, by_chip = _read_numbers(fetch(DREAM5_EXPRESSION))
    X = principal_coordinates(_read_columns(fetch(DREAM5_CHIPS), DREAM5_CONDITION))
    return Dataset("dream5", X, torch.from_numpy(by_chip), _coordinate_names(), genes, (256, 100))


def principal_coordinates(rows: Sequence[Sequence[str]], n_coordinates: int = N_COORDINATES) -> Tensor:
    """The first principal coordinates of a table of words, ``(N, n_coordinates)``.

    Each column of words is one-hot encoded. An empty cell counts as a word. The encoded columns are centred but not
    scaled, and the coordinates are their principal components. The sign of each coordinate is chosen such that the
    entry of largest magnitude, or the first of several such entries, is positive. Coordinates beyond the rank of the
    table are 0.

    :param rows: N rows, each with the same number of words.
    :param n_coordinates: the number of coordinates.

    >>> principal_coordinates([["glucose"], ["glucose"], ["acetate"], ["acetate"]], 1).T.round(decimals=4)
    tensor([[ 0.7071,  0.7071, -0.7071, -0.7071]], dtype=torch.float64)
    """
    table = np.array(rows, dtype=str)
    encoded = np.concatenate([column[:, None] == np.unique(column) for column in table.T], axis=1).astype(float)
    U, S, _ = np.linalg.svd(encoded - encoded.mean(0), full_matrices=False)
    coordinates = np.zeros((len(table), n_coordinates))
    rank = min(n_coordinates, np.count_nonzero(S / max(S[0], 1.0) > 1e-10))
    coordinates[:, :rank] = U[:, :rank] * S[:rank]
    size = np.abs(coordinates)
    largest = (size >= (1 - 1e-9) * size.max(0)).argmax(0)  # entries that differ by rounding only count as equal
    signs = np.where(coordinates[largest, np.arange(n_coordinates)] < 0, -1.0, 1.0)
    return torch.from_numpy(coordinates * signs)


def _coordinate_names() -> tuple[str, ...]:
    return tuple(f"coordinate {i}" for i in range(1, N_COORDINATES + 1))


def _read_numbers(path: Path) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the columns of a table, and their numbers. A column without a name holds labels and is left out."""
    with path.open(newline="", encoding="utf-8") as file:
        header = next(csv.reader(file))
    columns = [place for place, name in enumerate(header) if name]
    numbers = np.loadtxt(path, delimiter=",", skiprows=1, usecols=columns, ndmin=2)
    return tuple(header[place] for place in columns), numbers


def _read_columns(path: Path, names: Sequence[str]) -> list[list[str]]:
    """The cells of the named columns of a table, row by row."""
    with path.open(newline="", encoding="utf-8") as file:
        return [[row[name] for name in names] for row in csv.DictReader(file)]
