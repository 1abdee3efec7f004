"""What predictions of a collapsed network cost, as ratios in one run, on one thread.

    python benchmarks/predictions.py [--small]

1. D = 10⁶, N = 64, K = 10, float32, smooth and noisy: mean and standard deviation at 32 inputs against the mean alone.
2. N = 80, D = 1,000, K = 5: the mean at 10⁴ new inputs, with and without the standard deviation, against the plain
   computation: triangular solves and a QR factorisation of all draws' coefficients, made anew at each call.
3. N = 80, D = 1,024: the mean at one input, again and again.

Ratios are of processor time, so that other programs on the machine change them little. ``--small`` takes a hundredth of
the outputs and a tenth of the inputs, to try the program.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from collapsed import runs
from torch import Tensor

from pyro_gprn import GPRNRegressor
from pyro_gprn.algebra.linalg import safe_cholesky
from pyro_gprn.collapsed.conditioned import MOST_DRAWS as N_DRAWS
from pyro_gprn.collapsed.draws import PosteriorDraws
from pyro_gprn.estimator.fitted import BLOCK_NUMBERS, FittedNetwork
from pyro_gprn.prediction.conditional import Conditional, draw_rows
from pyro_gprn.pyro_state import new_generator
from pyro_gprn.training.widening import Places, Widening

#: Factors of outputs and of places, as fits have that chose by folds.
WIDENING = Widening(1.1, 0.9, (0.5, 2.0), places=Places(0.8, 0.1, 4.0))


def seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """The median processor time of a call."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def fit(n_outputs: int, n_rows: int, n_latents: int, noise: float = 0.0) -> GPRNRegressor:
    X, Y = runs(n_outputs, n_rows)
    for row in Y:
        row += noise * torch.randn(n_outputs)
    settings = {"starts": ["independent"], "kernel_w": "rbf", "steps": 30, "seed": 0, "progress": False}
    return GPRNRegressor(n_latents, **settings).fit(X.numpy(), Y.numpy())


@torch.no_grad()
def plain(fitted: FittedNetwork, X: Tensor, *, with_deviation: bool) -> tuple[Tensor, Tensor | None]:
    """Mean and variance as they were computed before anything was kept, a block of inputs at a time."""
    model, known = fitted.model, fitted.known
    values = known.values_at(slice(None))
    means, variances = [], []
    for some in X.split(max(1, BLOCK_NUMBERS // (N_DRAWS * model.n_rows))):
        generator = new_generator(fitted.seed)
        draws = PosteriorDraws.of(model, fitted.guide, N_DRAWS, mirrored=True, generator=generator)
        white = torch.randn(N_DRAWS // 2, 1, model.n_latents, dtype=torch.float64, generator=generator)

        def at(V: Tensor, some: Tensor = some, white: Tensor = white) -> tuple[Tensor, Tensor]:
            Lf, Kw, noise = model.covariances()
            f = Conditional.of(model.kernel_f, model.X, some, Lf, model.noise_f)
            F, F_new = Lf @ V, f.whitened.mT @ V + draw_rows(f.residual, torch.cat([white, -white]))
            cross = model.kernel_w(some, model.X) * (F_new @ F.mT)
            L = safe_cholesky(model.output_covariance(F, Kw, noise))
            half = torch.linalg.solve_triangular(L, cross.mT, upper=False)
            prior = model.kernel_w(some).diagonal() * F_new.square().sum(-1)
            within = (prior - half.square().sum(-2)).clamp(min=0.0).mean(0) + noise
            return torch.linalg.solve_triangular(L.mT, half, upper=True).mT, within

        ((coefficients, within),) = draws.each(at)
        mean = coefficients.mean(0)
        root = torch.linalg.qr((coefficients - mean).movedim(0, -2) / N_DRAWS**0.5, mode="r").R
        means.append(mean @ values)
        if with_deviation:
            scales = fitted.output_scales
            own = 1.0 if scales is None else scales.variance()
            between = torch.cat([(root @ values[:, b]).square().sum(-2) for b in torch.arange(1000).split(100)], dim=-1)
            variances.append(between + within.unsqueeze(-1) * own)
    return torch.cat(means), torch.cat(variances) if with_deviation else None


def a_million_outputs(n_outputs: int) -> None:
    for noise in (0.0, 0.1):
        r = fit(n_outputs, 64, 10, noise)
        r._set_fitted(replace(r.fitted_, widening=WIDENING))
        X = torch.randn(32, 5).numpy()
        r.predict(X, return_std=True)
        mean, both = seconds(lambda: r.predict(X)), seconds(lambda: r.predict(X, return_std=True))  # noqa: B023
        n_directions = r.fitted_.conditioned().projection.shape[1]
        name = f"D = {n_outputs:,}, noise {noise}"
        print(f"| {name}: mean at 32 inputs | {mean:.2f} s | 1 |")
        print(f"| {name}: mean and deviation ({n_directions} directions) | {both:.2f} s | {both / mean:.2f} |")


def many_inputs(n_new: int) -> None:
    r = fit(1000, 80, 5)
    X = torch.randn(n_new, 5).numpy()
    fitted, inputs = r.fitted_, r.fitted_.scaling.inputs(torch.from_numpy(X).double())
    mean, deviation = r.predict(X[:50], return_std=True)
    expected, variance = plain(fitted, inputs[:50], with_deviation=True)
    error = np.abs(mean - fitted.scaling.undo(expected.clone()).numpy()).max() / np.abs(mean).max()
    errors = np.abs(deviation / fitted.scaling.undo_spread(variance.sqrt()).numpy() - 1)
    for name, with_deviation in (("mean", False), ("mean and deviation", True)):
        now = seconds(lambda: r.predict(X, return_std=with_deviation), 3)  # noqa: B023
        before = seconds(lambda: plain(fitted, inputs, with_deviation=with_deviation), 1)  # noqa: B023
        print(f"| {name} at {n_new:,} inputs: plain | {before:.2f} s | 1 |")
        print(f"| {name} at {n_new:,} inputs | {now:.2f} s | {before / now:.1f} times faster |")
    print(f"| the mean is that of the plain computation to | {error:.0e} | |")
    print(f"| and the deviation to (median, largest) | {np.median(errors):.0e}, {errors.max():.0e} | |")


def one_input() -> None:
    r = fit(1024, 80, 5)
    X = np.random.default_rng(0).normal(size=(100, 5))
    r.predict(X[:1], return_std=True)
    inputs = torch.from_numpy(X)
    now = statistics.median(seconds(lambda x=x: r.predict(x[None]), 1) for x in X)
    both = statistics.median(seconds(lambda x=x: r.predict(x[None], return_std=True), 1) for x in X)
    before = seconds(lambda: plain(r.fitted_, inputs[:1], with_deviation=False), 10)
    print(f"| one input, D = 1,024: plain | {1e3 * before:.1f} ms | 1 |")
    print(f"| one input: mean | {1e3 * now:.1f} ms | {before / now:.1f} times faster |")
    print(f"| one input: mean and deviation | {1e3 * both:.1f} ms | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a hundredth of the outputs, a tenth of the inputs")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("| | processor time | ratio |\n| --- | --- | --- |")
    one_input()
    many_inputs(10**3 if options.small else 10**4)
    a_million_outputs(10**4 if options.small else 10**6)


if __name__ == "__main__":
    main()
