"""The ``pyro-gprn`` command."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyro_gprn.datasets import simulate_cantilever, simulate_cavity
from pyro_gprn.experiments.demo import run_demo


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``pyro-gprn`` with the given (or the shell's) arguments."""
    parser = argparse.ArgumentParser(prog="pyro-gprn", description="Gaussian process regression networks on Pyro.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_demo(commands.add_parser("demo", help="fit a field-valued simulation, print scores and draw a figure"))
    simulate = commands.add_parser("simulate", help="make one of the paper's simulated data sets, or go on making it")
    sets = simulate.add_subparsers(dest="data", required=True)
    _add_cantilever(sets.add_parser("cantilever", help="optimal structures under random forces, 40 × 80 outputs"))
    _add_cavity(sets.add_parser("cavity", help="pressure in a cavity with moving walls, 100 × 100 × 100 outputs"))
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except KeyboardInterrupt:
        again = "; the same command goes on from here" if options.command == "simulate" else ""
        raise SystemExit(f"interrupted{again}") from None


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--figure", type=Path, default=Path("pyro-gprn-demo.png"), help="where the figure goes")
    parser.add_argument("--steps", type=int, default=400, help="how many training steps")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=lambda given: run_demo(given.figure, steps=given.steps, progress=not given.quiet))


def _add_cantilever(parser: argparse.ArgumentParser) -> None:
    _add_simulation(parser, runs=356, folder="cantilever")
    parser.add_argument("--stress", action="store_true", help="the von Mises stress too")
    parser.set_defaults(run=_simulate_cantilever)


def _simulate_cantilever(given: argparse.Namespace) -> None:
    runs = simulate_cantilever(given.runs, given.seed, stress=given.stress, **_how(given))
    _finish(given, runs.X.numpy())


def _add_cavity(parser: argparse.ArgumentParser) -> None:
    _add_simulation(parser, runs=96, folder="cavity")
    parser.add_argument("--grid", type=int, default=100, help="cells along each side")
    parser.add_argument("--frames", type=int, default=100, help="how many times the output is seen")
    parser.add_argument("--final-time", type=float, default=10.0, help="when it is seen last")
    parser.add_argument("--field", choices=["pressure", "velocity"], default="pressure")
    parser.set_defaults(run=_simulate_cavity)


def _simulate_cavity(given: argparse.Namespace) -> None:
    size = {"grid": given.grid, "frames": given.frames, "final_time": given.final_time, "field": given.field}
    runs = simulate_cavity(given.runs, given.seed, **size, **_how(given))
    _finish(given, runs.X.numpy())


def _add_simulation(parser: argparse.ArgumentParser, runs: int, folder: str) -> None:
    parser.add_argument("--runs", type=int, default=runs, help=f"how many; {runs} by default, as in the paper")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    parser.add_argument("--folder", type=Path, default=Path(folder), help="where they go, and are gone on with")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many to work with")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _how(given: argparse.Namespace) -> dict[str, Any]:
    return {"folder": given.folder, "processes": given.processes, "progress": not given.quiet}


def _finish(given: argparse.Namespace, inputs: np.ndarray) -> None:
    np.save(given.folder / "inputs.npy", inputs)
    print(f"{given.runs} runs: {given.folder / 'inputs.npy'} and {given.folder / 'runs.npy'}")


if __name__ == "__main__":
    main()
