"""Gaussian processes by scikit-learn, as a careful user would set them up."""

from __future__ import annotations

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern, WhiteKernel


def make_kernel(name: str, n_columns: int) -> Kernel:
    """A kernel with a length-scale for each standardised input, its variance and the noise."""
    start, bounds = np.full(n_columns, n_columns**0.5), (1e-2, 1e4)
    shape = RBF(start, bounds) if name == "rbf" else Matern(start, bounds, nu=2.5)
    return ConstantKernel(1.0, (1e-3, 1e6)) * shape + WhiteKernel(1e-3, (1e-12, 10.0))


def fit_one(X: np.ndarray, y: np.ndarray, restarts: int, seed: int) -> GaussianProcessRegressor:
    """A GP of one output: RBF or Matérn-5/2, whichever has the higher marginal likelihood."""
    candidates = [
        GaussianProcessRegressor(
            make_kernel(name, X.shape[1]), normalize_y=True, n_restarts_optimizer=restarts, random_state=seed
        ).fit(X, y)
        for name in ("rbf", "matern52")
    ]
    return max(candidates, key=lambda each: each.log_marginal_likelihood_value_)


def predict_each(
    X: np.ndarray, Y: np.ndarray, X_new: np.ndarray, restarts: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation ``(N*, D)`` of a GP for each output, fitted to the rows where it is observed."""
    columns = []
    for y in Y.T:
        known = ~np.isnan(y)
        if np.ptp(y[known]) == 0:
            columns.append((np.full(len(X_new), y[known][0]), np.zeros(len(X_new))))
        else:
            columns.append(fit_one(X[known], y[known], restarts, seed).predict(X_new, return_std=True))
    means, deviations = zip(*columns, strict=True)
    return np.stack(means, 1), np.stack(deviations, 1)


def fit_shared(
    X: np.ndarray, Y: np.ndarray, restarts: int, seed: int, *, kernel: str = "rbf", normalise: bool = False
) -> GaussianProcessRegressor:
    """One GP for all outputs: scikit-learn's own for several outputs.

    The marginal likelihood depends on Y by Y Yᵀ alone, so its maximum is found with at most N columns in the place of
    D. scikit-learn makes an array of N × N × D numbers for each gradient otherwise.

    :param normalise: whether each output is standardised, scikit-learn's ``normalize_y``.
    """
    spread = Y.std(0) if normalise else np.ones(Y.shape[1])
    scaled = (Y - Y.mean(0) * normalise) / np.where(spread > 0, spread, 1.0)
    settings = {"n_restarts_optimizer": restarts, "random_state": seed}
    if Y.shape[1] > len(Y):
        U, S, _ = np.linalg.svd(scaled, full_matrices=False)
        # log p of r columns Z with Z Zᵀ = (r/D) Y Yᵀ is r/D times that of Y.
        scaled = U * S * (len(S) / Y.shape[1]) ** 0.5
    found = GaussianProcessRegressor(make_kernel(kernel, X.shape[1]), **settings).fit(X, scaled)
    return GaussianProcessRegressor(found.kernel_, optimizer=None, normalize_y=normalise).fit(X, Y)
