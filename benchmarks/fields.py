"""Accuracy on simulated fields, with default settings, beside two baselines.

    pip install scikit-learn; python benchmarks/fields.py

Held-out NRMSE of independent GPs with one shared kernel, of PCA-GP (15 components, each an exact GP with its own
RBF-ARD kernel and noise) and of the collapsed GPRN, with the coverage of its central 95 % intervals. Two splits of each
problem.
"""

from __future__ import annotations

import math
import time
import warnings

import torch
from sklearn.decomposition import PCA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import Tensor

from pyro_gprn import CollapsedGPRN, fit_collapsed, posterior_predictive
from pyro_gprn.baselines import independent_gps
from pyro_gprn.datasets import simulate_plume
from pyro_gprn.metrics import coverage, nrmse

N_TRAIN, N_TEST = 80, 20


def heat(seed: int) -> tuple[Tensor, Tensor]:
    """A smooth, noise-free field: two bumps that diffuse on a rod; inputs diffusivity and the place of one bump."""
    X = torch.rand(N_TRAIN + N_TEST, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    modes = torch.arange(1, 81, dtype=torch.float64)
    points, times = torch.linspace(0, 1, 64).double(), torch.linspace(0.02, 0.3, 64).double()
    centre, diffusivity = 0.3 + 0.2 * X[:, 1], 0.05 * (1 + X[:, 0])
    start = torch.exp(-0.5 * ((points - centre[:, None]) / 0.1).square()) + torch.exp(
        -0.5 * ((points - 0.75) / 0.1).square()
    )
    sines = torch.sin(math.pi * modes[:, None] * points)
    coefficients = 2 * start @ sines.T / len(points)
    decay = torch.exp(-diffusivity[:, None, None] * (math.pi * modes).square() * times[:, None])
    return X, torch.einsum("nm,ntm,mx->ntx", coefficients, decay, sines)


def fronts(seed: int) -> tuple[Tensor, Tensor]:
    """Moving fronts: travelling waves of the viscous Burgers equation; inputs speed, viscosity and place."""
    X = torch.rand(N_TRAIN + N_TEST, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    speed, viscosity, place = 1 + X[:, 0], 0.01 * 3 ** X[:, 1], 0.1 + 0.3 * X[:, 2]
    points, times = torch.linspace(0, 1, 128).double(), torch.linspace(0, 0.5, 64).double()
    offset = points - (place[:, None] + 0.5 * speed[:, None] * times)[..., None]
    height = speed[:, None, None]
    return X, 0.5 * height * (1 - torch.tanh(0.25 * height * offset / viscosity[:, None, None]))


def noisy_blob(seed: int) -> tuple[Tensor, Tensor]:
    """A bump that moves over a square, with noise of a tenth of the field's standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(N_TRAIN + N_TEST, 3, generator=generator, dtype=torch.float64)
    points = torch.linspace(0, 1, 40).double()
    place, width = 0.2 + 0.6 * X[:, :2], 0.08 + 0.08 * X[:, 2]
    across = torch.exp(-0.5 * ((points - place[..., None]) / width[:, None, None]).square())
    Y = across[:, 0, :, None] * across[:, 1, None, :]
    return X, Y + 0.1 * Y.std() * torch.randn(Y.shape, generator=generator, dtype=torch.float64)


def plume(seed: int) -> tuple[Tensor, Tensor]:
    """The demo's puff."""
    return tuple(simulate_plume(N_TRAIN + N_TEST, seed))  # type: ignore[return-value]


def pca_gp(X: Tensor, Y: Tensor, X_new: Tensor, n_components: int = 15) -> Tensor:
    """Mean of exact GPs on principal components, back in the outputs' space."""
    pca = PCA(n_components).fit(Y.numpy())
    scores = []
    for component in pca.transform(Y.numpy()).T:
        kernel = ConstantKernel(1.0, (1e-3, 1e6)) * RBF([1.0] * X.shape[1], (1e-2, 1e3)) + WhiteKernel(
            1e-4, (1e-12, 1.0)
        )
        regressor = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=0)
        scores.append(torch.from_numpy(regressor.fit(X.numpy(), component).predict(X_new.numpy())))
    return torch.from_numpy(pca.inverse_transform(torch.stack(scores, 1).numpy()))


def main() -> None:
    print("| problem | outputs | independent GPs | PCA-GP | GPRN | coverage | fit |\n" + "| --- " * 7 + "|")
    for problem in (heat, plume, fronts, noisy_blob):
        for seed in (0, 1):
            X, Y = (array.flatten(1).double() for array in problem(seed))
            X = (X - X[:N_TRAIN].mean(0)) / X[:N_TRAIN].std(0)
            Y = (Y - Y[:N_TRAIN].mean(0)) / Y[:N_TRAIN].std()
            (X, X_new), (Y, truth) = X.split([N_TRAIN, N_TEST]), Y.split([N_TRAIN, N_TEST])
            independent = posterior_predictive(*independent_gps(X, Y, Y.shape[1]), X_new).mean()
            start = time.perf_counter()
            model = CollapsedGPRN(X, Y.shape[1], 5, effective_outputs="auto")
            fit = fit_collapsed(model, Y, seed=0, progress=False)
            taken = time.perf_counter() - start
            predictive = posterior_predictive(model, fit.guide, X_new)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # scikit-learn on parameters at their bounds
                principal = pca_gp(X, Y, X_new)
            errors = [nrmse(prediction, truth) for prediction in (independent, principal, predictive.mean())]
            shown = " | ".join(f"{error:.3g}" for error in errors)
            covered = coverage(predictive.sample(256), truth)
            print(
                f"| {problem.__name__} {seed} | {Y.shape[1]:,} | {shown} | {covered:.3f} | {taken:.1f} s |", flush=True
            )


if __name__ == "__main__":
    main()
