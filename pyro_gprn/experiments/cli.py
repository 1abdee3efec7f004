"""The ``pyro-gprn`` command.

Torch and all that needs it are imported by the functions that run a subcommand, so that ``pyro-gprn --help`` answers
at once.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the ``pyro-gprn`` command.

    :param arguments: the arguments of the command. None takes those of the shell.

    >>> import tempfile
    >>> size = ["--runs", "2", "--grid", "8", "--frames", "3", "--final-time", "0.1", "--processes", "1", "--quiet"]
    >>> main(["simulate", "cavity", "--folder", tempfile.mkdtemp(), *size])
    2 runs: ...inputs.npy and ...runs.npy
    """
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except KeyboardInterrupt:
        again = "; the same command continues from here" if options.command in ("simulate", "reproduce") else ""
        raise SystemExit(f"interrupted{again}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pyro-gprn", description="Gaussian process regression networks on Pyro.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_demo(commands.add_parser("demo", help="fit a simulated field, print scores and draw a figure"))
    _add_compare(commands.add_parser("compare", help="compare methods on the data of a file, by rows held out"))
    simulate = commands.add_parser("simulate", help="make one of the paper's simulated data sets, or continue with it")
    sets = simulate.add_subparsers(dest="data", required=True)
    _add_cantilever(sets.add_parser("cantilever", help="optimal designs under random forces, 40 × 80 outputs"))
    _add_cavity(sets.add_parser("cavity", help="pressure in a square with moving walls, 100 × 100 × 100 outputs"))
    reproduce = commands.add_parser("reproduce", help="run an experiment of the paper again, or continue with it")
    experiments = reproduce.add_subparsers(dest="experiment", required=True)
    _add_experiment(experiments.add_parser("table1", help="errors of inferences of the same network"))
    _add_experiment(experiments.add_parser("figure1", help="seconds an iteration against K"))
    _add_experiment(experiments.add_parser("figure2", help="errors of many methods on many outputs against K"))
    _add_page(experiments.add_parser("page", help="make the tables and plots of a page from the files of results"))
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--figure", type=Path, default=Path("pyro-gprn-demo.png"), help="the file for the figure")
    parser.add_argument("--steps", type=int, help="at most this many training steps")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.set_defaults(run=_run_demo)


def _run_demo(given: argparse.Namespace) -> None:
    from pyro_gprn.experiments.demo import run_demo

    run_demo(given.figure, steps=given.steps, progress=not given.quiet)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="a file of NumPy (.npz) or netCDF (.nc) with inputs and outputs")
    parser.add_argument("--inputs", nargs="+", default=["X"], help="the array of inputs, or arrays for its columns (X)")
    parser.add_argument("--output", default="Y", help="the array of outputs (Y)")
    names = ", ".join(_METHODS)
    parser.add_argument("--methods", nargs="+", choices=_METHODS, metavar="METHOD", help=f"out of {names}")
    parser.add_argument("--folds", type=int, default=5, help="into how many parts the rows are split (5)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the folds and of the methods (0)")
    parser.add_argument("--figure", type=Path, help="a file for a figure of the scores")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.set_defaults(run=_run_compare)


#: The methods that can be compared from the shell: the name of a class, and settings beside the seed.
_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "gprn": ("GPRNRegressor", {"progress": False}),
    "independent": ("IndependentGP", {}),
    "own-kernels": ("IndependentGP", {"own_kernels": True}),
    "lmc": ("LMC", {"progress": False}),
    "pca": ("ReducedGP", {"reducer": "pca"}),
    "kpca": ("ReducedGP", {"reducer": "kpca"}),
    "isomap": ("ReducedGP", {"reducer": "isomap"}),
    "hogp": ("HOGP", {}),
    "mean": ("TrainingMean", {}),
}


def _make_method(name: str, seed: int) -> Any:
    from pyro_gprn import baselines, estimator

    kind, settings = _METHODS[name]
    return getattr(estimator if name == "gprn" else baselines, kind)(seed=seed, **settings)


def _run_compare(given: argparse.Namespace) -> None:
    from pyro_gprn.experiments.comparison import compare
    from pyro_gprn.experiments.files import read_data

    X, Y = read_data(given.data, given.inputs, given.output)
    methods = None if given.methods is None else {name: _make_method(name, given.seed) for name in given.methods}
    found = compare(methods, X, Y, cv=given.folds, seed=given.seed, progress=not given.quiet)
    print(f"{len(X)} rows of {Y[0].size} outputs, {given.folds} folds; lower is better, and a coverage near 0.95")
    print(found)
    if len(found.methods) > 1:
        print(f"\ndifferences from {found.methods[0]} ± their standard errors\n{found.describe_differences()}")
    if given.figure is not None:
        found.plot()[0].figure.savefig(given.figure, dpi=120)
        print(f"\nfigure: {given.figure.resolve()}")


def _add_cantilever(parser: argparse.ArgumentParser) -> None:
    _add_simulation(parser, runs=356, folder="cantilever")
    parser.add_argument("--stress", action="store_true", help="store the von Mises stress as well")
    parser.set_defaults(run=_simulate_cantilever)


def _simulate_cantilever(given: argparse.Namespace) -> None:
    from pyro_gprn import datasets

    runs = datasets.simulate_cantilever(given.runs, given.seed, stress=given.stress, **_shared_settings(given))
    _finish(given, runs.X)


def _add_cavity(parser: argparse.ArgumentParser) -> None:
    _add_simulation(parser, runs=96, folder="cavity")
    parser.add_argument("--grid", type=int, default=100, help="the number of cells along each side")
    parser.add_argument("--frames", type=int, default=100, help="the number of times at which outputs are recorded")
    parser.add_argument("--final-time", type=float, default=10.0, help="the last of these times")
    parser.add_argument("--field", choices=["pressure", "velocity"], default="pressure", help="what is recorded")
    parser.set_defaults(run=_simulate_cavity)


def _simulate_cavity(given: argparse.Namespace) -> None:
    from pyro_gprn import datasets

    size = {"grid": given.grid, "frames": given.frames, "final_time": given.final_time, "field": given.field}
    runs = datasets.simulate_cavity(given.runs, given.seed, **size, **_shared_settings(given))
    _finish(given, runs.X)


def _add_simulation(parser: argparse.ArgumentParser, runs: int, folder: str) -> None:
    parser.add_argument("--runs", type=int, default=runs, help=f"how many runs; {runs} by default, as in the paper")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the random inputs")
    parser.add_argument("--folder", type=Path, default=Path(folder), help="where the runs are stored")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="the number of processes")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def _shared_settings(given: argparse.Namespace) -> dict[str, Any]:
    """The settings that all simulators have."""
    return {"folder": given.folder, "processes": given.processes, "progress": not given.quiet}


def _finish(given: argparse.Namespace, inputs: Tensor) -> None:
    """Stores the inputs beside the runs, and says where both are."""
    import numpy as np

    np.save(given.folder / "inputs.npy", inputs.numpy())
    print(f"{given.runs} runs: {given.folder / 'inputs.npy'} and {given.folder / 'runs.npy'}")


def _add_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, help="the file of results; what is in it is not run again")
    parser.add_argument("--figure", type=Path, help="the file for the plot, where there is one")
    parser.add_argument("--repeats", type=int, help="how many repeats of each cell, each with a seed of its own")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these data sets or methods only")
    parser.add_argument("--quick", action="store_true", help="a small grid on small simulated data, as a test")
    parser.add_argument("--summary", action="store_true", help="run nothing, and show what is in the file")
    parser.add_argument("--again", action="store_true", help="run the cells that are in the file, too")
    parser.add_argument("--processes", type=int, default=1, help="how many cells run at the same time (1)")
    parser.add_argument("--folder", type=Path, default=Path(), help="where simulated data are made and kept")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.set_defaults(run=_reproduce)


def _reproduce(given: argparse.Namespace) -> None:
    from pyro_gprn.experiments.reproduction.command import Request, reproduce

    asked = Request(
        given.results,
        given.figure,
        given.repeats,
        given.only,
        is_quick=given.quick,
        is_summary=given.summary,
        again=given.again,
        processes=given.processes,
        folder=given.folder,
        progress=not given.quiet,
    )
    reproduce(given.experiment, asked)


def _add_page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--page", type=Path, default=Path("docs/paper-results.md"), help="the page, in Markdown")
    parser.add_argument("--results", type=Path, default=Path("docs/results"), help="the folder of the files of results")
    parser.set_defaults(run=_write_page)


def _write_page(given: argparse.Namespace) -> None:
    from pyro_gprn.experiments.reproduction.page import write_page

    made = write_page(given.page, given.results)
    print(f"{given.page}: {', '.join(made) or 'no results'}")


if __name__ == "__main__":
    main()
