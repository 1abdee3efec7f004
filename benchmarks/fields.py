"""Accuracy on simulated fields, with default settings, beside two baselines.

    python benchmarks/fields.py

Held-out NRMSE of independent GPs with one shared kernel, of PCA-GP (15 components, each an exact GP with its own
RBF-ARD kernel and noise) and of the collapsed GPRN, with the coverage of its central 95 % intervals. Two splits of each
problem.
"""

from __future__ import annotations

import time
import warnings

import torch
from comparison.simulators.development import fronts, heat, noisy_blob
from sklearn.decomposition import PCA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from torch import Tensor

from pyro_gprn import CollapsedGPRN, fit_collapsed, posterior_predictive
from pyro_gprn.baselines import independent_gps
from pyro_gprn.datasets import simulate_plume
from pyro_gprn.metrics import coverage, nrmse

N_TRAIN, N_TEST = 80, 20
FIELDS = {"heat": heat, "plume": simulate_plume, "fronts": fronts, "noisy_blob": noisy_blob}


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
    for name, problem in FIELDS.items():
        for seed in (0, 1):
            X, Y = (array.flatten(1).double() for array in problem(N_TRAIN + N_TEST, seed))
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
            print(f"| {name} {seed} | {Y.shape[1]:,} | {shown} | {covered:.3f} | {taken:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
