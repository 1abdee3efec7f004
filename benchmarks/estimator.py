"""What GPRNRegressor adds to the cost of ``fit_collapsed``, at D = 10⁶, N = 64, float32, as ratios in one run.

    python benchmarks/estimator.py

1. A whole fit of the estimator, against ``fit_collapsed`` on inputs and outputs that are tensors and standardised
   already (both with the same model and seed).
2. The most memory beyond Y that the estimator's fit takes, and that a prediction of 32 means takes, the result (128 MB)
   included. Each is measured in a process of its own.
3. With --rows N: the memory beyond the data of a few steps with that many rows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from collapsed import runs

from pyro_gprn import CollapsedGPRN, GPRNRegressor, fit_collapsed

N, K, D = 64, 10, 10**6


def most_memory() -> float:
    """Of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def warm_up() -> None:
    """Imports, and memory that torch takes once."""
    X, Y = runs(200, 12)
    GPRNRegressor(2, steps=10, seed=0, progress=False).fit(X, Y).predict(X)


def compare_times(repeats: int = 3) -> None:
    X, Y = runs(D, N)
    scaled_X = (X - X.mean(0)) / X.std(0, correction=0)
    scaled_Y = Y - Y.mean(0)
    scaled_Y /= scaled_Y.square().mean().sqrt()

    def bare() -> None:
        fit_collapsed(CollapsedGPRN(scaled_X, D, K, effective_outputs="auto"), scaled_Y, seed=0, progress=False)

    def whole() -> None:
        GPRNRegressor(K, seed=0, standardize="field", selection=False, progress=False).fit(X, Y)

    times = [(seconds(bare), seconds(whole)) for _ in range(repeats)]
    of_bare, of_whole = (statistics.median(each) for each in zip(*times, strict=True))
    print(f"| fit_collapsed on prepared tensors | {of_bare:.2f} s | 1 |")
    print(f"| GPRNRegressor.fit | {of_whole:.2f} s | {of_whole / of_bare:.2f} |")


def measure_memory(kind: str, n_rows: int) -> None:
    warm_up()
    X, Y = runs(D if kind != "rows" else 100, n_rows)
    before = most_memory()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the size
        steps = {"fit": 400, "predict": 20, "rows": 2}[kind]
        regressor = GPRNRegressor(K if kind != "rows" else 3, steps=steps, seed=0, progress=False).fit(X, Y)
    if kind == "predict":
        regressor.predict(torch.randn(32, X.shape[1]))
    name = {"fit": "fit", "predict": "fit and 32 means", "rows": f"fit, {n_rows} rows"}[kind]
    print(f"| {name}: most memory beyond the data | {max(0.0, most_memory() - before):.0f} MB | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="the memory of a few steps with that many rows (minutes)")
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads\n\n| | | ratio |\n| --- | --- | --- |", flush=True)
    context = multiprocessing.get_context("spawn")
    measured = [("rows", options.rows)] if options.rows else [("fit", N), ("predict", N)]
    for arguments in measured:
        process = context.Process(target=measure_memory, args=arguments)
        process.start()
        process.join()
    if not options.rows:
        warm_up()
        compare_times()


if __name__ == "__main__":
    main()
