"""PCA-GP with a million outputs: passes over Y, and time beside that of one pass.

    python benchmarks/reduced.py [--outputs 1000000] [--rows 64]

A pass is a read of all outputs. The floor is the one pass that makes the Gram matrix, which every fit needs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from pyro_gprn.baselines import ReducedGP
from pyro_gprn.outputs.gram import gram_matrix
from pyro_gprn.outputs.source import ArrayOutputs


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def count_reads() -> list[int]:
    """A list to which the size of every block that is read from now on is added."""
    numbers, read = [], ArrayOutputs.read

    def counted(self: ArrayOutputs, positions: Any) -> torch.Tensor:
        block = read(self, positions)
        numbers.append(block.numel())
        return block

    ArrayOutputs.read = counted  # type: ignore[method-assign]
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=10**6)
    parser.add_argument("--rows", type=int, default=64)
    options = parser.parse_args()
    X = torch.rand(options.rows, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    places = torch.linspace(0, 3, options.outputs)
    Y = torch.sin(3 * X[:, :1] + places) + X[:, 1:2] * torch.cos(2 * X[:, 2:] + places) ** 2
    floor = seconds(lambda: gram_matrix(Y))
    numbers = count_reads()
    small = seconds(lambda: ReducedGP(n_components=10, seed=0).fit(X, Y[:, :1000]))
    numbers.clear()
    emulator = ReducedGP(n_components=10, seed=0)
    work = {
        "fit": lambda: emulator.fit(X, Y),
        "predict with a standard deviation": lambda: emulator.predict(X[:4], return_std=True),
        "predict again": lambda: emulator.predict(X[:4]),
    }
    print(f"{options.rows} rows of {options.outputs} outputs; one pass for the Gram matrix: {floor:.2f} s")
    print(f"fit of 1,000 outputs: {small:.2f} s")
    for name, each in work.items():
        before, taken = sum(numbers), seconds(each)
        passes = (sum(numbers) - before) / Y.numel()
        print(f"{name}: {passes:.2f} passes, {taken:.2f} s, {taken / floor:.1f} times one pass")


if __name__ == "__main__":
    main()
