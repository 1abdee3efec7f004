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


def seconds() -> float:
    X, Y = simulate_plume(80)
    start = time.perf_counter()
    GPRNRegressor(seed=0, selection=False, progress=False).fit(X, Y)
    return time.perf_counter() - start


def main() -> None:
    seconds()  # imports
    alone, beside = [], []
    for _ in range(REPEATS):
        alone.append(seconds())
        other = multiprocessing.get_context("spawn").Process(target=keep_busy, daemon=True)
        other.start()
        time.sleep(3)  # until it has started
        beside.append(seconds())
        other.terminate()
        other.join()
    one, two = statistics.median(alone), statistics.median(beside)
    print(f"{torch.get_num_threads()} threads, {multiprocessing.cpu_count()} cores\n")
    print("| fit, N = 80, D = 1,024 | time | ratio |\n| --- | --- | --- |")
    print(f"| alone | {one:.2f} s | 1 |")
    print(f"| beside one busy process | {two:.2f} s | {two / one:.2f} |")


if __name__ == "__main__":
    main()
