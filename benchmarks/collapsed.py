"""What the collapsed model costs, as ratios in one run.

    python benchmarks/collapsed.py [--kronecker]

1. D = 10⁶, N = 64, K = 10: a whole fit with default settings and the mean at 32 new inputs, against one float32 pass
   Y Yᵀ over the same Y; a step at D = 10⁶ against one at D = 10³; peak memory beyond Y.
2. N = 500, K = 20: a step against one N×N Cholesky factorisation.
3. With --kronecker: the time to reach the bound at which the paper's guide (full mean, Adam, D = 10⁴) ends.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import pyro
import torch
from torch import Tensor

from pyro_gprn import GPRN, ClosedFormELBO, CollapsedGPRN, KroneckerGuide, fit_collapsed, posterior_predictive
from pyro_gprn.collapsed.trainee import CollapsedTrainee
from pyro_gprn.pyro_state import isolated, new_generator

N, K, P = 64, 10, 5


def runs(n_outputs: int, n_rows: int, n_inputs: int = P) -> tuple[Tensor, Tensor]:
    """Inputs and float32 outputs: bumps on a line, whose place, width and height depend on the inputs."""
    X = torch.randn(n_rows, n_inputs)
    points = torch.linspace(0, 1, n_outputs)
    Y = torch.empty(n_rows, n_outputs)
    for x, y in zip(X, Y, strict=True):  # row by row and in place: the peak of memory should be the fit's, not ours
        place, width, height = 0.5 + 0.15 * x[0], 0.1 * (0.3 * x[1]).exp(), 1 + 0.3 * x[2]
        y[:] = height * torch.exp(-0.5 * ((points - place) / width).square())
    Y -= Y.mean(0)
    Y /= Y[:, :: max(1, n_outputs // 1000)].std()
    return X, Y


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def median_seconds(*functions: Callable[[], object], repeats: int) -> list[float]:
    """Median times of functions called in turn."""
    times = [[seconds(function) for function in functions] for _ in range(repeats + 1)][1:]
    return [statistics.median(taken) for taken in zip(*times, strict=True)]


def make_step(X: Tensor, Y: Tensor, n_latents: int) -> Callable[[], object]:
    model = CollapsedGPRN(X, Y.shape[1], n_latents)
    return CollapsedTrainee(model, model.statistics(Y), 0.01, new_generator(0)).step


def small_problem() -> tuple[Tensor, int, int]:
    return torch.randn(8, 2), 20, 2


def a_million_outputs() -> None:
    X, Y = runs(10**6, N)
    X_new = torch.randn(32, P)
    product = statistics.median(seconds(lambda: Y @ Y.mT) for _ in range(5))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = CollapsedGPRN(X, Y.shape[1], K, effective_outputs="auto")
    start = time.perf_counter()
    fit = fit_collapsed(model, Y, starts=["independent"], steps=400, seed=0, progress=False)  # settings given
    fitted = time.perf_counter()
    posterior_predictive(model, fit.guide, X_new).mean()
    end = time.perf_counter()
    beyond = max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"| one float32 pass Y Yᵀ | {product:.3f} s | 1 |")
    print(f"| fit ({len(fit.losses)} steps) | {fitted - start:.2f} s | {(fitted - start) / product:.1f} |")
    print(f"| mean at 32 inputs | {end - fitted:.2f} s | {(end - fitted) / product:.1f} |")
    print(f"| both | {end - start:.2f} s | {(end - start) / product:.1f} |")
    print(f"| most memory beyond Y | {beyond:.0f} MB | |")
    small_X, small_Y = runs(10**3, N)
    small, large = median_seconds(make_step(small_X, small_Y, K), make_step(X, Y, K), repeats=30)
    print(f"| a step, D = 10³ | {1e3 * small:.2f} ms | |")
    print(f"| a step, D = 10⁶ | {1e3 * large:.2f} ms | {large / small:.2f} of D = 10³ |")


def many_rows() -> None:
    X, Y = runs(1000, 500)
    matrix = torch.eye(500, dtype=torch.float64) + 0.1
    step, factorise = median_seconds(make_step(X, Y, 20), lambda: torch.linalg.cholesky(matrix), repeats=20)
    print(f"| a step, N = 500, K = 20 | {1e3 * step:.1f} ms | {step / factorise:.1f} of a Cholesky factorisation |")


def against_the_paper(n_outputs: int = 10**4, steps: int = 300) -> None:
    X, Y = runs(n_outputs, N)
    model = GPRN(X, n_outputs, K)
    loss = ClosedFormELBO()(model, KroneckerGuide(model, mean="full", output_factors="isotropic"))
    optimiser = torch.optim.Adam(loss.parameters(), lr=0.01)
    start = time.perf_counter()
    for _ in range(steps):
        optimiser.zero_grad()
        value = loss(Y)
        value.backward()
        optimiser.step()
    taken = time.perf_counter() - start
    print(f"| paper's guide, D = {n_outputs:,}, {steps} Adam steps: bound {-value.item():,.0f} | {taken:.0f} s | |")
    target = -value.item()
    collapsed = CollapsedGPRN(X, n_outputs, K)
    reached: list[float] = []
    start = time.perf_counter()

    def note(step: int, bound: float) -> None:
        if bound >= target and not reached:
            reached.append(time.perf_counter() - start)

    fit = fit_collapsed(collapsed, Y, seed=0, progress=False, callback=note)
    total = time.perf_counter() - start
    first = reached[0] if reached else float("nan")
    print(f"| collapsed: reaches that bound | {first:.2f} s | {taken / first:.0f} times sooner |")
    print(f"| collapsed: ends at {fit.bound:,.0f} | {total:.2f} s | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kronecker", action="store_true", help="also the time to the paper's guide's bound (minutes)")
    options = parser.parse_args()
    torch.manual_seed(0)
    pyro.settings.set(module_local_params=True)
    print(f"{torch.get_num_threads()} threads\n\n| | time | ratio |\n| --- | --- | --- |")
    with isolated():
        fit_collapsed(CollapsedGPRN(*small_problem()), torch.randn(8, 20), steps=5, progress=False)  # imports, warm-up
        a_million_outputs()
        many_rows()
        if options.kronecker:
            against_the_paper()


if __name__ == "__main__":
    main()
