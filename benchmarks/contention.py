"""A fit beside another process that keeps one core busy, against the same fit alone.

    python benchmarks/contention.py

Both in one run, with torch's own number of threads, in turns.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time

import torch

from pyro_gprn import GPRNRegressor
from pyro_gprn.datasets import simulate_plume

REPEATS = 3


def keep_busy() -> None:
    """Multiplies matrices until it is ended."""
    torch.set_num_threads(1)
    matrix = torch.randn(500, 500)
    while True:
        matrix @ matrix


def seconds(selection: bool) -> float:
    X, Y = simulate_plume(80)
    start = time.perf_counter()
    GPRNRegressor(seed=0, selection=selection, progress=False).fit(X, Y)
    return time.perf_counter() - start


def compare(selection: bool) -> tuple[float, float]:
    """The median time of a fit alone and beside a busy process, in turns."""
    alone, beside = [], []
    for _ in range(REPEATS):
        alone.append(seconds(selection))
        other = multiprocessing.get_context("spawn").Process(target=keep_busy, daemon=True)
        other.start()
        time.sleep(3)  # until it has started
        beside.append(seconds(selection))
        other.terminate()
        other.join()
    return statistics.median(alone), statistics.median(beside)


def main() -> None:
    seconds(selection=False)  # imports
    print(f"{torch.get_num_threads()} threads, {multiprocessing.cpu_count()} cores\n")
    print("| fit, N = 80, D = 1,024 | alone | beside one busy process | ratio |\n| --- | --- | --- | --- |")
    for name, selection in (("by default, with folds", True), ("selection=False", False)):
        alone, beside = compare(selection)
        print(f"| {name} | {alone:.2f} s | {beside:.2f} s | {beside / alone:.2f} |", flush=True)


if __name__ == "__main__":
    main()
