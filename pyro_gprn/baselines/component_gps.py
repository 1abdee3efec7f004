"""A Gaussian process for each of some components, trained as a batch by GPyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import add_to_diagonal, quiet_jitter, safe_cholesky
from pyro_gprn.baselines.extra import load

#: Kernels by name, each with a length-scale for every input column.
KERNELS = ("rbf", "matern52", "matern32")
#: The least variance of the noise, for a component of unit variance; the least and greatest variance of the kernel; and
#: the least length-scale, for inputs of unit variance. Without the last two a line search may leap to where distances
#: are nothing but rounding, and replicated inputs have no Cholesky factor there.
LEAST_NOISE, VARIANCES, LEAST_LENGTH = 1e-10, (1e-6, 1e6), 1e-2
#: Starts: length-scale over √P standard deviations of the inputs, variance of the noise. Each component takes its best.
STARTS = ((0.3, 1e-2), (1.0, 1e-3), (3.0, 1e-5))
#: At most this many steps of L-BFGS.
STEPS = 200


@dataclass(frozen=True)
class ComponentGPs:
    """Gaussian processes of C components of unit variance, each with its own hyperparameters, given training scores.

    :param X: inputs, ``(N, P)``.
    :param scores: of each row, of unit mean square over the rows, ``(C, N)``.
    :param kernel: a stationary GPyTorch ``ScaleKernel`` with a batch of C, or without one for one component.
    :param noise: the variance of the noise of each component, ``(C,)``.
    :param evidence: the log marginal likelihood of each component, ``(C,)``.
    """

    X: Tensor
    scores: Tensor
    kernel: Any
    noise: Tensor
    evidence: Tensor

    @cached_property
    def _root(self) -> Tensor:
        """The Cholesky factor of the covariance of the scores, ``(C, N, N)``."""
        with quiet_jitter():
            return safe_cholesky(add_to_diagonal(self._covariance(self.X, self.X), self.noise))

    def _covariance(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.kernel(X, Z).to_dense().expand(len(self.scores), len(X), len(Z))

    @torch.no_grad()
    def conditional(self, X: Tensor, *, joint: bool) -> tuple[Tensor, Tensor]:
        """Mean ``(C, N*)`` and covariance of the components at new inputs, noise included.

        :param X: new inputs, ``(N*, P)``.
        :param joint: True for the covariance over the inputs, ``(C, N*, N*)``; False for its diagonal, ``(C, N*)``.
        """
        half = torch.linalg.solve_triangular(self._root, self._covariance(self.X, X), upper=False)  # (C, N, N*)
        white = torch.linalg.solve_triangular(self._root, self.scores.unsqueeze(-1), upper=False)
        mean = (half.mT @ white).squeeze(-1)
        if joint:
            return mean, add_to_diagonal(self._covariance(X, X) - half.mT @ half, self.noise)
        # The kernels are stationary. (GPyTorch's diag=True takes inputs for components where there are as many.)
        variance = self.kernel.outputscale.reshape(-1, 1) - half.square().sum(1)
        return mean, variance.clamp(min=0.0) + self.noise.unsqueeze(-1)


def fit_components(X: Tensor, scores: Tensor, kernel: str = "auto", *, steps: int = STEPS) -> ComponentGPs:
    """Fits a GP to each component by its marginal likelihood, all as one batch.

    :param X: inputs, ``(N, P)``.
    :param scores: ``(C, N)``, of unit mean square over the rows.
    :param kernel: one out of :data:`KERNELS`; ``"auto"`` takes RBF or Matérn-5/2, whichever has the higher marginal
        likelihood over all components.
    :param steps: at most so many steps of L-BFGS.

    >>> X = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None]
    >>> gps = fit_components(X, torch.sin(6 * X + torch.arange(3)).mT, "rbf")
    >>> [each.shape for each in gps.conditional(X[:4], joint=True)]
    [torch.Size([3, 4]), torch.Size([3, 4, 4])]
    """
    candidates = ("rbf", "matern52") if kernel == "auto" else (kernel,)
    fits = [_fit(X, scores, each, steps) for each in candidates]
    return max(fits, key=lambda fit: fit.evidence.sum().item())


def _fit(X: Tensor, scores: Tensor, kernel: str, steps: int) -> ComponentGPs:
    with _quiet():
        model = _make_model(X, scores, kernel)
        likelihood = load("gpytorch.mlls").ExactMarginalLogLikelihood(model.likelihood, model).train()

        def evidence() -> Tensor:
            with torch.no_grad():
                value = likelihood(model(*model.train_inputs), model.train_targets)
            return value.reshape(len(scores)) * len(X)

        _take_best_start(model, X.shape[1], evidence)
        load("botorch.optim.fit").fit_gpytorch_mll_scipy(likelihood, options={"maxiter": steps})
        noise = model.likelihood.noise.detach().reshape(len(scores))
        return ComponentGPs(X, scores, model.covar_module.requires_grad_(False), noise, evidence())


def _make_model(X: Tensor, scores: Tensor, name: str) -> Any:
    """An untrained model with a batch of C."""
    kernels, constraints = load("gpytorch.kernels"), load("gpytorch.constraints")
    batch = torch.Size([len(scores)] if len(scores) > 1 else [])  # BoTorch has no batch of one
    length = constraints.GreaterThan(LEAST_LENGTH)
    settings = {"ard_num_dims": X.shape[1], "batch_shape": batch, "lengthscale_constraint": length}
    if name == "rbf":
        shape = kernels.RBFKernel(**settings)
    else:
        shape = kernels.MaternKernel(nu={"matern52": 2.5, "matern32": 1.5}[name], **settings)
    noise, variance = constraints.GreaterThan(LEAST_NOISE), constraints.Interval(*VARIANCES)
    return load("botorch.models").SingleTaskGP(
        X,
        scores.mT,
        likelihood=load("gpytorch.likelihoods").GaussianLikelihood(noise_constraint=noise, batch_shape=batch),
        covar_module=kernels.ScaleKernel(shape, batch_shape=batch, outputscale_constraint=variance),
        mean_module=load("gpytorch.means").ZeroMean(batch_shape=batch),
        outcome_transform=None,
    )


def _take_best_start(model: Any, n_columns: int, evidence: Any) -> None:
    """Puts the hyperparameters of each component to the start with the highest marginal likelihood."""
    kernel, likelihood = model.covar_module, model.likelihood
    kernel.outputscale = torch.ones_like(kernel.outputscale)
    length, noise = torch.ones_like(kernel.base_kernel.lengthscale), torch.ones_like(likelihood.noise)
    found = []
    for scale, level in STARTS:
        kernel.base_kernel.lengthscale = length * scale * n_columns**0.5
        likelihood.noise = noise * level
        found.append(evidence())
    best = torch.stack(found).argmax(0)  # (C,)
    scales, levels = length.new_tensor(STARTS)[best].mT
    kernel.base_kernel.lengthscale = length * scales.reshape(-1, 1, 1).reshape(length[..., :1].shape) * n_columns**0.5
    likelihood.noise = levels.reshape(noise.shape)


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of inputs outside the unit cube, of jitter on the way, or of the last step."""
    with warnings.catch_warnings(), load("botorch.settings").validate_input_scaling(False):
        warnings.simplefilter("ignore")
        yield
