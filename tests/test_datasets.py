"""Loaders, with the published files if they are on this machine, and with small files of the same form."""

import functools
import math
import shutil
from dataclasses import replace

import numpy as np
import pyro
import pytest
import torch

from pyro_gprn import datasets
from pyro_gprn.datasets import Dataset, sample_gprn
from pyro_gprn.datasets.published import equity, expression, jura, pm25
from pyro_gprn.datasets.published.expression import principal_coordinates
from pyro_gprn.datasets.published.fetch import checksum_of

# name: shapes of X and Y, number of missing outputs, first and last number in Y, first and last name of an output
PUBLISHED = {
    "jura": ((359, 2), (359, 3), 0, [1.74, 54.96], ["Cd", "Zn"]),
    "equity": ((643, 5), (643, 25), 0, [3.845271e-5, 1.9162841e-4], ["NASDAQ-NASDAQ", "DJC-DJC"]),
    "pm25": ((288, 1), (288, 10, 10), 838, [0.49478260869565227, 6.901818181818182], ["5627", "993"]),
    "precise": ((278, 10), (278, 3923), 0, [11.0066525158509, 0.0], ["b0002", "b4705"]),
}
# name: first and last number in X, for the sets whose files contain X itself
INPUTS = {"jura": [2.386, 3.312], "equity": [7.4608563e-3, -0.021709741], "pm25": [0.0, 143.5]}


@pytest.fixture
def publish(website, monkeypatch):
    """Returns a function that puts a small file in the place of a published one."""

    def publish(module, constant: str, text: str) -> None:
        file = getattr(module, constant)
        address = website.publish(file.path, text.encode())
        algorithm = (file.checksum or "sha256").partition(":")[0]
        checksum = checksum_of(website.folder / file.path, algorithm)
        monkeypatch.setattr(module, constant, replace(file, address=address, checksum=checksum))

    return publish


@functools.cache
def published(name: str) -> Dataset:
    """A data set, loaded once for all tests; for tests with the fixture ``published_files``."""
    return getattr(datasets, f"load_{name}")()


def lines(rows) -> str:
    return "\n".join(rows) + "\n"


def numbers(rows: int, columns: int) -> np.ndarray:
    return np.arange(rows * columns, dtype=float).reshape(rows, columns)


# ------------------------------------------------------------------------------------------- the published files


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_set_has_its_shapes_and_numbers(published_files, name):
    X_shape, Y_shape, missing, ends, names = PUBLISHED[name]
    data = published(name)
    assert data.name == name
    assert (data.X.shape, data.Y.shape, data.output_shape) == (X_shape, Y_shape, Y_shape[1:])
    assert data.X.dtype == data.Y.dtype == torch.float64
    assert data.X.isfinite().all()
    assert int(data.Y.isnan().sum()) == missing
    assert data.Y.flatten()[[0, -1]].tolist() == ends
    assert [data.output_names[0], data.output_names[-1]] == names


@pytest.mark.parametrize("name", INPUTS)
def test_the_inputs_of_a_published_set_are_those_of_its_file(published_files, name):
    assert published(name).X.flatten()[[0, -1]].tolist() == INPUTS[name]


@pytest.mark.parametrize(
    ("name", "n_train", "n_test"), [("jura", 249, 100), ("equity", 200, 200), ("pm25", 256, 32), ("precise", 178, 100)]
)
def test_the_splits_have_the_sizes_of_the_paper(published_files, name, n_train, n_test):
    split = published(name).split(seed=0)
    assert (len(split.X_train), len(split.Y_train)) == (n_train, n_train)
    assert (len(split.X_test), len(split.Y_test)) == (n_test, n_test)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("jura", "jura/Y.txt"),
        ("equity", "equity/truth.txt"),
        ("pm25", "pm25/queriedData.csv"),
        ("precise", "precise/sample_table.csv"),
    ],
)
def test_an_altered_copy_of_a_published_file_is_refused(published_files, tmp_path, monkeypatch, name, path):
    copy = shutil.copytree(published_files / name, tmp_path / "copy" / name)
    content = bytearray((tmp_path / "copy" / path).read_bytes())
    content[-10] ^= 1
    (tmp_path / "copy" / path).write_bytes(content)
    monkeypatch.setenv("PYRO_GPRN_DATA", str(copy.parent))
    with pytest.raises(ValueError, match=f"is not the published {path}"):
        getattr(datasets, f"load_{name}")()


def test_replicates_of_precise_share_inputs(published_files):
    X = published("precise").X
    torch.testing.assert_close(X[0], X[1])  # control__wt_glc__1 and __2
    assert (X[0] - X[2]).abs().max() > 0.1  # fur__wt_dpd__1
    torch.testing.assert_close(X.mean(0), torch.zeros(10, dtype=torch.float64))
    gram = X.T @ X
    torch.testing.assert_close(gram, gram.diag().diag())
    assert (gram.diag().diff() < 0).all()


def test_covariances_of_equity_are_symmetric(published_files):
    matrices = published("equity").Y.reshape(-1, 5, 5)
    torch.testing.assert_close(matrices, matrices.mT, rtol=0, atol=0)
    assert (torch.linalg.eigvalsh(matrices) > 0).all()


# ---------------------------------------------------------------------------------- small files of the same form


def test_jura_can_hide_cadmium_at_the_validation_sites(publish):
    sites, metals = numbers(262, 2), numbers(262, 3)
    publish(jura, "LOCATIONS", lines(" ".join(map(str, row)) for row in sites))
    publish(jura, "CONCENTRATIONS", lines(" ".join(map(str, row)) for row in metals))
    complete, hidden = datasets.load_jura(), datasets.load_jura(pattern="wilson")
    np.testing.assert_array_equal(complete.X, sites)
    np.testing.assert_array_equal(complete.Y, metals)
    assert hidden.Y.isnan().nonzero().tolist() == [[259, 0], [260, 0], [261, 0]]
    torch.testing.assert_close(hidden.Y[:, 1:], complete.Y[:, 1:])
    with pytest.raises(ValueError, match="no split of its own"):
        hidden.split(0)
    with pytest.raises(ValueError, match="'complete' or 'wilson'; got 'random'"):
        datasets.load_jura(pattern="random")


def test_equity_has_the_returns_for_inputs(publish):
    publish(equity, "RETURNS", lines("  ".join(map(str, row)) for row in numbers(3, 5)))
    publish(equity, "COVARIANCES", lines("  ".join(map(str, row)) for row in numbers(3, 25)))
    data = datasets.load_equity()
    np.testing.assert_array_equal(data.X, numbers(3, 5))
    np.testing.assert_array_equal(data.Y, numbers(3, 25))
    assert data.output_names[1] == "NASDAQ-FTSE"


def test_pm25_reads_time_and_holes(publish):
    sensors = [f"s{i}" for i in range(103)]
    header = [["", label, *sensors] for label in ("ID", "Model", "Latitude")] + [["time", "Longitude", *sensors]]
    values = [[str(value) for value in row] for row in numbers(2, 103)]
    values[1][4] = ""
    rows = [["2018-07-02T23:30:00Z", "", *values[0]], ["2018-07-03T00:00:00Z", "", *values[1]]]
    publish(pm25, "MEASUREMENTS", lines(",".join(f'"{cell}"' for cell in row) for row in header + rows))
    data = datasets.load_pm25()
    assert data.X.tolist() == [[0.0], [0.5]]
    assert data.Y.shape == (2, 10, 10)
    assert data.Y.isnan().nonzero().tolist() == [[1, 0, 4]]
    assert data.Y[0, 9, 9] == 99.0
    assert data.output_names == tuple(sensors[:100])


def sample_table(samples) -> str:
    """A table of samples whose conditions differ in one column, which holds the first letter of the sample."""
    header = ",".join(["Sample ID", "Replicate #", *expression.PRECISE_CONDITION])
    return lines([header, *(f"{sample},{i},{sample[0]}," + "same," * 8 for i, sample in enumerate(samples))])


def test_precise_has_a_row_for_each_sample(publish):
    publish(expression, "PRECISE_EXPRESSION", lines([",a1,a2,b1", "gene1,1.0,2.0,3.0", "gene2,4.0,5.0,6.0"]))
    publish(expression, "PRECISE_SAMPLES", sample_table(["a1", "a2", "b1"]))
    data = datasets.load_precise()
    assert data.Y.tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    assert data.output_names == ("gene1", "gene2")
    torch.testing.assert_close(data.X[0], data.X[1])
    assert data.X[2, 0] > 0 > data.X[0, 0]


def test_precise_refuses_a_table_of_other_samples(publish):
    publish(expression, "PRECISE_EXPRESSION", lines([",a1,b1", "gene1,1.0,2.0"]))
    publish(expression, "PRECISE_SAMPLES", sample_table(["b1", "a1"]))
    with pytest.raises(ValueError, match="list different samples"):
        datasets.load_precise()


CHIPS = lines(
    [
        "#Experiment,Perturbations,PerturbationLevels,Treatment,DeletedGenes,OverexpressedGenes,Time,Repeat",
        "1,NA,NA,NA,NA,NA,NA,1",
        "1,NA,NA,NA,NA,NA,NA,2",
        '48,"P4,P15","1.00,1.00",NA,NA,NA,1,1',
    ]
)


@pytest.mark.parametrize("labelled", [False, True])
def test_dream5_has_a_row_for_each_chip(publish, labelled):
    table = ["G1,G2", "1.5,2.5", "3.5,4.5", "5.5,6.5"]
    if labelled:
        table = [f"{label},{row}" for label, row in zip(("", "chip1", "chip2", "chip3"), table, strict=True)]
    publish(expression, "DREAM5_EXPRESSION", lines(table))
    publish(expression, "DREAM5_CHIPS", CHIPS)
    data = datasets.load_dream5()
    assert expression.DREAM5_EXPRESSION.checksum.startswith("git-blob:")
    assert data.Y.tolist() == [[1.5, 2.5], [3.5, 4.5], [5.5, 6.5]]
    assert data.output_names == ("G1", "G2")
    assert data.X.shape == (3, 10)
    torch.testing.assert_close(data.X[0], data.X[1])
    with pytest.raises(ValueError, match="has 3 rows; got n_train=256 and n_test=100"):
        data.split(0)


def test_dream5_from_a_folder_must_be_the_published_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_GPRN_DATA", str(tmp_path))
    (tmp_path / "dream5").mkdir()
    (tmp_path / "dream5/e_coli_expression_data.csv").write_text("G1\n1.0\n", encoding="utf-8")
    with pytest.raises(ValueError, match="git-blob:74cba0ed"):
        datasets.load_dream5()


# ----------------------------------------------------------------------------------------------------- the parts


def toy(rows: int = 20) -> Dataset:
    X = torch.arange(rows, dtype=torch.float64)[:, None]
    return Dataset("toy", X, X.expand(rows, 2).clone(), ("x",), ("a", "b"), (10, 5))


def test_a_split_has_different_rows_by_seed_and_shares_none():
    data = toy()
    first, again, other = data.split(1), data.split(1), data.split(2)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert first.X_test.tolist() != other.X_test.tolist()
    rows = torch.cat([first.X_train, first.X_test]).flatten()
    assert len(rows.unique()) == 15
    torch.testing.assert_close(first.Y_train[:, 0], first.X_train[:, 0])


def test_the_test_rows_do_not_depend_on_the_training_rows():
    data = toy()
    torch.testing.assert_close(data.split(3, n_train=2).X_test, data.split(3, n_train=15).X_test, rtol=0, atol=0)


def test_a_split_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    toy().split(5)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": torch.zeros(3, 1)}, "as many rows; got 3 and 20"),
        ({"output_names": ("a",)}, r"got 1 and 1 names for X \(20, 1\) and Y \(20, 2\)"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(toy(), **change)


def test_principal_coordinates_keep_distances_and_ignore_the_order_of_words():
    generator = np.random.default_rng(0)
    rows = generator.choice(["", "a", "b", "c"], size=(30, 3)).tolist()
    coordinates = principal_coordinates(rows, n_coordinates=12)  # the rank is 3 · (4 − 1)
    assert (coordinates[:, 9:] == 0).all()
    # two rows are at distance √(2 · columns in which they differ)
    differ = (np.array(rows)[:, None] != np.array(rows)[None]).sum(-1)
    torch.testing.assert_close(
        torch.cdist(coordinates, coordinates), torch.from_numpy(np.sqrt(2.0 * differ)), atol=1e-6, rtol=0
    )
    renamed = [[{"": "z", "a": "y", "b": "x", "c": "w"}[word] for word in row] for row in rows]
    torch.testing.assert_close(principal_coordinates(renamed, 12), coordinates)


def test_a_table_of_one_condition_has_coordinates_of_zero():
    assert (principal_coordinates([["a", "b"]] * 4) == 0).all()


def test_a_draw_from_the_model_depends_on_the_seed_alone():
    state = torch.get_rng_state()
    draw = sample_gprn(6, seed=3, output_shape=(2, 3), n_latents=4, n_inputs=2)
    assert torch.equal(state, torch.get_rng_state())
    assert not list(pyro.get_param_store().keys())
    torch.rand(5)
    torch.testing.assert_close(sample_gprn(6, 3, output_shape=(2, 3), n_latents=4, n_inputs=2), draw, rtol=0, atol=0)
    assert sample_gprn(6, 4).X.tolist() != sample_gprn(6, 3).X.tolist()
    shapes = [tuple(each.shape) for each in draw]
    assert shapes == [(6, 2), (6, 2, 3), (6, 4), (6, 4, 2, 3)]
    assert not any(each.requires_grad for each in draw)
    assert {each.dtype for each in draw} == {torch.float64}


def test_a_draw_from_the_model_has_the_noise_it_was_asked_for():
    X, Y, F, W = sample_gprn(40, seed=1, output_shape=2000, noise_y=0.3)
    noise = Y - torch.einsum("nkd,nk->nd", W, F)
    # the standard error of a standard deviation from n draws is σ/√(2n)
    assert abs(noise.std().item() - 0.3) < 5 * 0.3 / math.sqrt(2 * noise.numel())
    assert X.min() >= 0
    assert X.max() <= 1
