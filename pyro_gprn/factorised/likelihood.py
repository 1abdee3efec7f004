"""The likelihood of a GPRN: outputs are the weights times the latent functions, plus noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints


class NetworkNormal(TorchDistribution):
    """``y_nd ~ Normal(Σ_k W_nkd F_nk, σ_y²)``, the mean multiplied out only when it is needed.

    Inference in closed form reads ``scale`` and never needs the product, which at a million outputs
    would cost more than all the rest.

    :param functions: ``F``, ``(*batch, N, K)``.
    :param weights: ``W``, ``(*batch, N, K, d_1, …, d_M)``.
    :param scale: ``σ_y``, one number ``()`` or one for each output ``(d_1, …, d_M)``.

    Its batch shape is ``(*batch, N, d_1, …, d_M)``.

    >>> y = NetworkNormal(torch.ones(4, 2), torch.ones(4, 2, 10, 10), torch.tensor(0.1))
    >>> y.batch_shape, y.mean.unique()
    (torch.Size([4, 10, 10]), tensor([2.]))
    """

    arg_constraints: dict[str, constraints.Constraint] = {"scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, functions: Tensor, weights: Tensor, scale: Tensor, validate_args: bool | None = None) -> None:
        self.functions, self.weights, self.scale = functions, weights, scale
        self.output_shape = weights.shape[functions.dim() :]
        if weights.shape[: functions.dim()] != functions.shape or not self.output_shape:
            raise ValueError(
                f"functions of shape (…, N, K) = {tuple(functions.shape)} need weights of shape (…, N, K, d_1, …, d_M);"
                f" got {tuple(weights.shape)}"
            )
        super().__init__(functions.shape[:-1] + self.output_shape, Size(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        n_modes = len(self.output_shape)
        functions = self.functions.reshape(self.functions.shape + (1,) * n_modes)
        return (functions * self.weights).sum(-1 - n_modes)

    @property
    def variance(self) -> Tensor:
        return self.scale.square().expand(self.batch_shape)

    def expand(self, batch_shape: Sequence[int], _instance: TorchDistribution | None = None) -> TorchDistribution:
        return self if Size(batch_shape) == self.batch_shape else self._normal().expand(Size(batch_shape))

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        return self._normal().rsample(Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        if torch.isnan(value).any():
            raise ValueError("Y holds NaN; for missing outputs pass mask=~torch.isnan(Y) beside Y")
        return self._normal().log_prob(value)

    def _normal(self) -> Normal:
        return Normal(self.mean, self.scale, validate_args=False)
