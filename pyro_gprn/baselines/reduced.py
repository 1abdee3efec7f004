"""Outputs reduced to a few components, with a Gaussian process for each: PCA-GP, KPCA-GP and Isomap-GP."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from pyro_gprn.algebra.linalg import covariance_root
from pyro_gprn.baselines.base import Baseline, GaussianRecord, check_complete
from pyro_gprn.baselines.component_gps import KERNELS, STEPS, ComponentGPs, fit_components
from pyro_gprn.baselines.reducers import GraphReduction, KernelReduction, LinearReduction, Reduction
from pyro_gprn.estimator.checks import check_count
from pyro_gprn.estimator.data import TrainingData
from pyro_gprn.estimator.scaling import Standardize
from pyro_gprn.pyro_state import few_threads, white_noise

#: Makes a reduction of outputs, by their Gram matrix and the number of components.
REDUCERS: dict[str, Callable[[Tensor, float], Reduction]] = {
    "pca": LinearReduction,
    "kpca": KernelReduction,
    "isomap": GraphReduction,
}
#: Draws of the components from which the moments of the outputs are estimated, where the way back is not linear.
N_DRAWS = 128


class ReducedGP(Baseline):
    """Outputs reduced to a few components, with a Gaussian process for each component, trained as a batch by GPyTorch.

    Every reducer needs the outputs through their Gram matrix alone, and its way back to outputs is a combination of the
    training outputs. A fit therefore takes one pass over Y, whatever their number, and so does a prediction (and one
    more the first time that a standard deviation is asked for).

    - ``"pca"``: principal components (Higdon et al., 2008). Mean and variance are closed form.
    - ``"kpca"``: kernel PCA with a Gaussian kernel, and the way back by kernel ridge regression
      (:class:`~pyro_gprn.baselines.reducers.KernelReduction`).
    - ``"isomap"``: Isomap, and the way back by a barycentre of the nearest training outputs
      (:class:`~pyro_gprn.baselines.reducers.GraphReduction`).

    For the last two, mean and variance are those of 128 draws, and densities and quantiles those of the Gaussian with
    these. The mean square of what the reduction leaves out of each output is part of the variance: for PCA by the
    training outputs and their degrees of freedom, for the others by leaving out one row at a time. Y must be complete.
    Needs ``pyro-gprn[baselines]``.

    :param reducer: ``"pca"``, ``"kpca"`` or ``"isomap"``.
    :param n_components: how many components at most, an integer (there are no more than the data have); or as few as
        explain so large a share of the variance, a number between 0 and 1.
    :param kernel: of the inputs, with a length-scale for each column: ``"rbf"``, ``"matern52"`` or ``"matern32"``.
        ``"auto"`` takes RBF or Matérn-5/2, whichever has the higher marginal likelihood over all components.
    :param steps: at most this many steps of L-BFGS.
    :param output_shape: ``(d_1, …, d_M)`` of a field whose outputs come flat, ``(N, D)``; by default the shape of Y.
    :param standardize: as for :class:`~pyro_gprn.GPRNRegressor`.
    :param seed: seed of all draws; None takes a seed from torch, and :meth:`sample` gives other draws at every call.
    :param device: torch's device; by default the CPU.

    After fitting, ``fitted_`` is the record of the fit, with its ``reduction`` and its ``gps``; ``n_components_`` says
    how many components there are.

    >>> import numpy as np
    >>> X = np.linspace(0, 1, 20)[:, None]
    >>> emulator = ReducedGP("pca", 4, seed=0).fit(X, np.sin(6 * X + np.linspace(0, 3, 500)))
    >>> mean, std = emulator.predict(X[:4] + 0.02, return_std=True)
    >>> bool(np.abs(mean - np.sin(6 * (X[:4] + 0.02) + np.linspace(0, 3, 500))).max() < 1e-3)
    True
    """

    fitted_: FittedReduction

    def __init__(
        self,
        reducer: Literal["pca", "kpca", "isomap"] = "pca",
        n_components: float = 15,
        *,
        kernel: str = "auto",
        steps: int = STEPS,
        output_shape: int | Sequence[int] | None = None,
        standardize: Standardize = True,
        seed: int | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self.reducer = reducer
        self.n_components = n_components
        self.kernel = kernel
        self.steps = steps
        self.output_shape = output_shape
        self.standardize = standardize
        self.seed = seed
        self.device = device

    @property
    def n_components_(self) -> int:
        """How many components there are."""
        return self.fitted_.reduction.scores.shape[1]

    def _check_settings(self) -> None:
        if self.reducer not in REDUCERS:
            raise ValueError(f"reducer must be {' or '.join(map(repr, REDUCERS))}; got {self.reducer!r}")
        if self.kernel not in ("auto", *KERNELS):
            raise ValueError(f"kernel must be 'auto' or one out of {', '.join(KERNELS)}; got {self.kernel!r}")
        n, is_number = self.n_components, isinstance(self.n_components, numbers.Real)
        is_count = isinstance(n, numbers.Integral) and not isinstance(n, bool) and n >= 1
        if not is_count and not (is_number and 0.0 < n < 1.0):
            raise ValueError(f"n_components must be an integer of at least 1 or a share between 0 and 1; got {n!r}")
        check_count("steps", self.steps)

    def _train(self, data: TrainingData, seed: int) -> FittedReduction:
        check_complete(data, "ReducedGP")
        n_components = int(self.n_components) if self.n_components >= 1 else float(self.n_components)
        with few_threads(len(data.X)):
            reduction = REDUCERS[self.reducer](data.known.gram, n_components)
            scale = reduction.scores.square().mean(0).sqrt()
            gps = fit_components(data.X, (reduction.scores / scale).mT.contiguous(), self.kernel, steps=self.steps)
        return FittedReduction(data, reduction, gps, scale, seed)


@dataclass(frozen=True)
class FittedReduction(GaussianRecord):
    """A reduction of the outputs with a Gaussian process for each component.

    :param reduction: from outputs to components and back.
    :param gps: of the components, each divided by its scale.
    :param scale: the standard deviation of each component over the training rows, ``(C,)``.
    :param seed: of the draws of which the moments are averages.
    """

    reduction: Reduction
    gps: ComponentGPs
    scale: Tensor
    seed: int

    @cached_property
    def left_out(self) -> Tensor:
        """The mean square of what the reduction leaves out of each output, ``(D,)``: one pass over Y."""
        residual = self.reduction.residual
        parts = [(residual @ block.double()).square().mean(0) for _, block in self.data.known.source.chunks()]
        return torch.cat(parts)

    def moments(self, X: Tensor, *, with_variance: bool) -> Iterator[tuple[slice, Tensor, Tensor]]:
        if isinstance(self.reduction, LinearReduction):
            yield from self._linear_moments(self.reduction, X, with_variance)
        else:
            yield from self._moments_of_draws(X, with_variance)

    def _linear_moments(
        self, reduction: LinearReduction, X: Tensor, with_variance: bool
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        mean, variance = self.gps.conditional(X, joint=False)
        coefficients = reduction.coefficients(mean.mT * self.scale)  # (N*, N)
        spread = variance.mT * self.scale.square()  # (N*, C)
        for block, values in self.data.known.source.chunks():
            values = values.double()
            variance = values.new_tensor(0.0)
            if with_variance:
                variance = spread @ (reduction.axes @ values).square() + self.left_out[block]
            yield block, coefficients @ values, variance

    def _moments_of_draws(self, X: Tensor, with_variance: bool) -> Iterator[tuple[slice, Tensor, Tensor]]:
        mean, variance = self.gps.conditional(X, joint=False)
        # The same draws at every input, so that its prediction does not depend on other inputs.
        scores = (mean + variance.sqrt() * even_noise(N_DRAWS, len(mean), self.seed).to(mean).unsqueeze(-1)).mT
        coefficients = self.reduction.coefficients(scores * self.scale)  # (s, N*, N)
        average = coefficients.mean(0)
        apart = (coefficients - average) / (N_DRAWS - 1) ** 0.5
        for block, values in self.data.known.source.chunks():
            values = values.double()
            variance = values.new_tensor(0.0)
            if with_variance:
                variance = self.left_out[block].repeat(len(X), 1)
                for each in apart:  # one at a time: no array holds all draws of a block
                    variance += (each @ values).square_()
            yield block, average @ values, variance

    def draw(self, X: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
        mean, covariance = self.gps.conditional(X, joint=True)
        white = white_noise(n_draws, *mean.shape, 1, like=mean, generator=generator)
        scores = mean + (covariance_root(covariance) @ white).squeeze(-1)  # (n, C, N*)
        coefficients = self.reduction.coefficients(scores.mT * self.scale)  # (n, N*, N)
        result = coefficients.new_empty(n_draws, len(X), self.data.known.source.n_outputs)
        for block, values in self.data.known.source.chunks():
            result[..., block] = coefficients @ values.double()
        noise = white_noise(*result.shape, like=result, generator=generator, dtype=torch.float32)
        return result.addcmul_(noise, self.left_out.sqrt())


def even_noise(n: int, size: int, seed: int) -> Tensor:
    """Standard normal numbers ``(n, size)`` that are spread more evenly than random ones: scrambled Sobol points.

    >>> bool(even_noise(128, 3, seed=0).mean(0).abs().max() < 0.05)
    True
    """
    points = SobolEngine(size, scramble=True, seed=seed).draw(n, dtype=torch.float64)
    return torch.special.ndtri(points.clamp(1e-6, 1 - 1e-6))
