"""The ``pyro-gprn`` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pyro_gprn.experiments.demo import run_demo


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``pyro-gprn`` with the given (or the shell's) arguments."""
    parser = argparse.ArgumentParser(prog="pyro-gprn", description="Gaussian process regression networks on Pyro.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="fit a field-valued simulation, print scores and draw a figure")
    demo.add_argument("--figure", type=Path, default=Path("pyro-gprn-demo.png"), help="where the figure goes")
    demo.add_argument("--steps", type=int, default=400, help="how many training steps")
    demo.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(arguments)
    run_demo(options.figure, steps=options.steps, progress=not options.quiet)


if __name__ == "__main__":
    main()
