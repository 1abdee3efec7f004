"""``pyro-gprn reproduce``: runs what is missing of an experiment, and prints and draws its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyro_gprn.experiments.grid import run_missing
from pyro_gprn.experiments.reproduction.cell import Cell
from pyro_gprn.experiments.reproduction.experiment import Experiment
from pyro_gprn.experiments.reproduction.figure1 import FIGURE_1
from pyro_gprn.experiments.reproduction.figure2 import FIGURE_2
from pyro_gprn.experiments.reproduction.measure import Measurement
from pyro_gprn.experiments.reproduction.table1 import TABLE_1
from pyro_gprn.experiments.results import read

EXPERIMENTS = {"table1": TABLE_1, "figure1": FIGURE_1, "figure2": FIGURE_2}


@dataclass(frozen=True)
class Request:
    """What is asked of an experiment.

    :param results: the file of results. None is the experiment's name, in the present folder.
    :param figure: the file for the plot. None is the experiment's name, in the present folder.
    :param repeats: how many repeats of each cell. None is the experiment's number, and 1 if ``is_quick``.
    :param only: names of data sets or methods that are run. None is all.
    :param is_quick: True for a small grid on small simulated data.
    :param is_summary: True runs nothing, and shows what is in the file.
    :param again: True runs the cells that are in the file, too.
    :param processes: how many cells run at the same time.
    :param folder: where simulated data are kept.
    :param progress: whether to show a progress bar.
    """

    results: Path | None = None
    figure: Path | None = None
    repeats: int | None = None
    only: Sequence[str] | None = None
    is_quick: bool = False
    is_summary: bool = False
    again: bool = False
    processes: int = 1
    folder: Path = Path()
    progress: bool = True


def reproduce(name: str, request: Request) -> None:
    """Runs the cells of an experiment that are not in the file of results, then prints and draws what is in it.

    :param name: ``"table1"``, ``"figure1"`` or ``"figure2"``.
    :param request: what is asked of it.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "results.jsonl"
    >>> reproduce("table1", Request(path, is_quick=True, only=["jura", "kronecker"], progress=False))
    1 cells to run, 0 done before
    jura 12, kronecker K = 2, repeat 0: ... s
    <BLANKLINE>
    quick: small draws from a network stand in for the data, and nothing is trained to the end
    <BLANKLINE>
    | data | method | repeats | MAE | beside kronecker | in the paper | NLPD | CRPS | coverage | CPU seconds |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | jura | kronecker | 1 | ... |  | SGPRN 0.5127 ± 0.002 | ...
    """
    experiment = EXPERIMENTS[name]
    stem = f"{name}-quick" if request.is_quick else name
    path = request.results or Path(f"{stem}.jsonl")
    repeats = request.repeats or (1 if request.is_quick else experiment.repeats)
    cells = experiment.grid(repeats, is_quick=request.is_quick, only=request.only)
    if not request.is_summary:
        _run(path, cells, experiment.measurement(request.folder, request.is_quick), request)
    known = read(path, Cell)
    results = {cell: known[cell] for cell in cells if cell in known}
    if not results:
        raise SystemExit(f"{path} has no results of {name}")
    if request.is_quick:
        print("\nquick: small draws from a network stand in for the data, and nothing is trained to the end")
    print("\n" + experiment.report(results))
    _draw(experiment, results, request.figure or Path(f"{stem}.png"))


def _run(path: Path, cells: Sequence[Cell], work: Measurement, request: Request) -> None:
    """Runs the cells that are missing, without those whose data are not here."""
    wanted = {cell.data for cell in cells}
    absent = [name for name in work.sources if name in wanted and not work.sources[name].is_here(request.folder)]
    for name in absent:
        print(f"{name} is left out: its data are not here; set PYRO_GPRN_DATA to their folder")
    run_missing(
        path,
        [cell for cell in cells if cell.data not in absent],
        work,
        tell=_tell,
        again=request.again,
        processes=request.processes,
        progress=request.progress,
    )


def _tell(result: dict[str, Any]) -> str:
    """One line about a result."""
    cell = Cell(*(result[name] for name in ("data", "n_train", "method", "n_latents", "repeat")))
    if "error" in result:
        return f"{cell}: {result['error']}"
    if "seconds_a_step" in result:
        return f"{cell}: {result['seconds_a_step']:.3g} s a step"
    scores = ", ".join(f"{name} {value:.4g}" for name, value in result["scores"].items() if isinstance(value, float))
    return f"{cell}: {scores}; {result['seconds']:.1f} s"


def _draw(experiment: Experiment, results: dict[Cell, dict[str, Any]], path: Path) -> None:
    """Draws the plot if there is one. Without matplotlib it says so."""
    finished = {cell: result for cell, result in results.items() if "error" not in result}
    if experiment.plot is None or not finished:
        return
    try:
        experiment.plot(finished, path)
    except ImportError:
        print("\nno plot: pip install 'pyro-gprn[plot]'")
    else:
        print(f"\nplot: {path}")
