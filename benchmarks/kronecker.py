"""What a training step of KroneckerGuide costs as the number of outputs D grows: time and memory.

    python benchmarks/kronecker.py

N = 64, K = 10. Steps at different D are timed in turn, in one process, and their medians compared; the peak memory of
a fit is measured in a process of its own and counts what it holds beyond Y.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pyro
import torch

from pyro_gprn import GPRN, ClosedFormELBO, KroneckerGuide

N, K, P = 64, 10, 5
MEMORY_CASES = [("projected", 10**3), ("projected", 10**6), ("full", 10**3), ("full", 10**5)]


def make_step(mean: str, n_outputs: int) -> Callable[[], None]:
    """A function that takes one Adam step on the bound."""
    X, Y = torch.rand(N, P), torch.randn(N, n_outputs)
    model = GPRN(X, output_shape=n_outputs, n_latents=K)
    loss = ClosedFormELBO()(model, KroneckerGuide(model, mean=mean))
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        loss(Y).backward()
        optimiser.step()

    return step


def compare(mean: str, small: int, large: int, repeats: int) -> None:
    """Prints the median times of steps at two numbers of outputs, taken in turn."""
    steps = {n_outputs: make_step(mean, n_outputs) for n_outputs in (small, large)}
    times: dict[int, list[float]] = {small: [], large: []}
    for repeat in range(repeats + 3):
        for n_outputs, step in steps.items():
            start = time.perf_counter()
            step()
            if repeat >= 3:  # the first steps make the Gram matrix and warm up
                times[n_outputs].append(time.perf_counter() - start)
    medians = {n_outputs: statistics.median(taken) for n_outputs, taken in times.items()}
    for n_outputs, median in medians.items():
        print(f"| {mean} | {n_outputs:,} | {1e3 * median:.1f} ms | {median / medians[small]:.2f} |")


def peak_memory() -> float:
    """Most memory that this process has held so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_memory(mean: str, n_outputs: int) -> None:
    """Prints what three steps hold at most beyond Y and beyond what a tiny fit holds (torch itself)."""
    make_step(mean, 10)()
    before = peak_memory()
    step = make_step(mean, n_outputs)
    for _ in range(3):
        step()
    beyond = max(0.0, peak_memory() - before - 4 * N * n_outputs / 2**20)
    print(f"| {mean} | {n_outputs:,} | {beyond:,.0f} MB |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory-of", nargs=2, metavar=("MEAN", "D"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    pyro.settings.set(module_local_params=True)
    torch.manual_seed(0)
    if options.memory_of:
        measure_memory(options.memory_of[0], int(options.memory_of[1]))
        return
    print(f"N = {N}, K = {K}, {torch.get_num_threads()} threads\n")
    # Memory first: a process starts with the peak of the one that started it.
    print("| mean | D | most memory of a fit beyond Y |\n| --- | --- | --- |", flush=True)
    for mean, n_outputs in MEMORY_CASES:
        subprocess.run([sys.executable, __file__, "--memory-of", mean, str(n_outputs)], check=True)
    print("\n| mean | D | one step | times the smaller D |\n| --- | --- | --- | --- |")
    compare("projected", 10**3, 10**6, repeats=30)
    compare("full", 10**3, 10**5, repeats=3)


if __name__ == "__main__":
    main()
