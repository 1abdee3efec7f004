"""What scattered holes cost, as ratios to complete outputs in the same run.

    python benchmarks/holes.py [--steps 400]

N = 40, D = 1,000 with 5 % of the outputs missing, and N = 30, D = 5,000 with 20 %: nearly every output has holes of its
own. A training step, an evaluation of the bound, a whole fit, predictions at 20 inputs, and a GPRNRegressor. Times are
the processor's, which the work of others disturbs less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import pyro
import torch
from torch import Tensor

from pyro_gprn import CollapsedGPRN, GPRNRegressor, fit_collapsed, posterior_predictive
from pyro_gprn.collapsed.trainee import CollapsedTrainee
from pyro_gprn.pyro_state import isolated, new_generator

K, P = 3, 2


def outputs(n_rows: int, n_outputs: int, missing: float) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, complete outputs, and the same with scattered holes."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n_rows, P, generator=generator, dtype=torch.float64)
    points = torch.linspace(0, 1, n_outputs, dtype=torch.float64)
    complete = torch.exp(-0.5 * ((points - X[:, :1]) / (0.1 + 0.2 * X[:, 1:])).square())
    complete = complete + 0.03 * torch.randn(complete.shape, generator=generator, dtype=torch.float64)
    complete = (complete - complete.mean(0)) / complete.std()
    is_missing = torch.rand(complete.shape, generator=generator) < missing
    return X, complete, complete.masked_fill(is_missing, torch.nan)


def seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def compare(name: str, make: Callable[[Tensor], Callable[[], object]], both: tuple[Tensor, Tensor], n: int) -> None:
    """Prints the median times of what is made of complete outputs and of those with holes, taken in turn."""
    functions = [make(Y) for Y in both]
    times = [[seconds(function) for function in functions] for _ in range(n + (n > 1))][n > 1 :]
    complete, holes = (statistics.median(taken) for taken in zip(*times, strict=True))
    print(f"| {name} | {1e3 * complete:.1f} ms | {1e3 * holes:.1f} ms | {holes / complete:.2f} |", flush=True)


def measure(n_rows: int, n_outputs: int, missing: float, steps: int) -> None:
    X, *pair = outputs(n_rows, n_outputs, missing)
    both = (pair[0], pair[1])

    def trainee(Y: Tensor) -> CollapsedTrainee:
        model = CollapsedGPRN(X, n_outputs, K)
        return CollapsedTrainee(model, model.statistics(Y), 0.01, new_generator(0))

    def fit(Y: Tensor) -> Callable[[], object]:
        model = CollapsedGPRN(X, n_outputs, K, effective_outputs="auto")
        return lambda: fit_collapsed(model, Y, steps=steps, seed=0, progress=False)

    def predict(Y: Tensor) -> Callable[[], object]:
        of = trainee(Y)

        def mean_and_variance() -> tuple[Tensor, Tensor]:
            predictive = posterior_predictive(of.model, of.guide, torch.rand(20, P, dtype=torch.float64), Y)
            return predictive.mean(), predictive.variance()

        return mean_and_variance

    def estimate(Y: Tensor) -> Callable[[], object]:
        estimator = GPRNRegressor(n_latents=K, steps=steps, seed=0, progress=False)
        return lambda: estimator.fit(X.numpy(), Y.numpy())

    print(f"\n| N = {n_rows}, D = {n_outputs:,}, {missing:.0%} missing | complete | holes | ratio |")
    print("| --- | --- | --- | --- |")
    compare("a step", lambda Y: trainee(Y).step, both, 20)
    compare("the bound by 64 draws", lambda Y: trainee(Y).evaluate, both, 3)
    compare("mean and variance at 20 inputs", predict, both, 3)
    compare(f"fit_collapsed, at most {steps} steps", fit, both, 1)
    compare(f"GPRNRegressor, at most {steps} steps", estimate, both, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="of a whole fit")
    options = parser.parse_args()
    pyro.settings.set(module_local_params=True)
    print(f"{torch.get_num_threads()} threads")
    with isolated():
        measure(40, 1000, 0.05, options.steps)
        measure(30, 5000, 0.2, options.steps)


if __name__ == "__main__":
    main()
