"""Outputs given the functions at inducing inputs, as a Pyro distribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from pyro_gprn.collapsed.inducing import LowRankCovariances
from pyro_gprn.collapsed.low_rank import low_rank_density
from pyro_gprn.outputs.compressed import CompressedStatistics
from pyro_gprn.outputs.gram import OutputStatistics

#: How many dimensions each part of the covariances has without a batch.
_N_DIMS = LowRankCovariances(2, 1, 2, 1, 0)  # type: ignore[arg-type]


class LowRankNormal(TorchDistribution):
    """Outputs given the functions at inducing inputs, scored by a lower bound of their log density (low_rank.py).

    Draws are row by row: given their values at inducing inputs, functions and weights of different rows are drawn
    independently of each other.

    :param V: whitened functions at inducing inputs, ``(*batch, m, K)``.
    :param covariances: of rows and inducing inputs; each part may have a batch before its own dimensions.
    :param output_shape: ``(d_1, …, d_M)``.
    :param statistics: of the outputs that will be scored; without, scoring makes them.

    The event shape is ``(N, d_1, …, d_M)``. NaN in a scored value is a missing output.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # a Cholesky factorisation checks them
    has_rsample = True

    def __init__(
        self,
        V: Tensor,
        covariances: LowRankCovariances,
        output_shape: Size,
        statistics: OutputStatistics | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.V, self.covariances, self.output_shape, self.statistics = V, covariances, output_shape, statistics
        batches = [part.shape[: part.dim() - n] for part, n in zip(covariances, _N_DIMS, strict=True)]
        batch_shape = torch.broadcast_shapes(V.shape[:-2], *batches)
        super().__init__(batch_shape, covariances.weights.shape[-2:-1] + output_shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: Sequence[int], _instance: TorchDistribution | None = None) -> LowRankNormal:
        V = self.V.expand(Size(batch_shape) + self.V.shape[-2:])
        return LowRankNormal(V, self.covariances, self.output_shape, self.statistics)

    @property
    def mean(self) -> Tensor:
        return self.V.new_zeros(()).expand(self.shape())

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        shape = Size(sample_shape) + self.batch_shape
        n_rows, n_outputs = self.event_shape[0], self.output_shape.numel()
        K, (functions, left, A, weights_left, noise) = self.V.shape[-1], self.covariances
        white = [_white(self.V, *shape, *size) for size in ((n_rows, K), (A.shape[-1], K * n_outputs))]
        F = functions @ self.V + left.sqrt().unsqueeze(-1) * white[0]
        own = weights_left.sqrt().unsqueeze(-1) * _white(self.V, *shape, n_rows, K * n_outputs)
        W = (A @ white[1] + own).unflatten(-1, (K, n_outputs))
        signal = (F.unsqueeze(-1) * W).sum(-2)
        drawn = signal + noise.sqrt()[..., None, None] * _white(self.V, *shape, n_rows, n_outputs)
        return drawn.reshape(self._extended_shape(Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        n_modes = len(self.event_shape)
        if value.dim() > n_modes:
            raise ValueError(
                f"with inducing inputs one value of shape {tuple(self.event_shape)} is scored at a time; got"
                f" {tuple(value.shape)}"
            )
        known = self.statistics
        if known is None or not known.source.is_of(value):
            known = CompressedStatistics.of(value)
        if not any(part.dim() > n for part, n in zip(self.covariances, _N_DIMS, strict=True)):
            mean = (self.covariances.functions @ self.V).reshape(-1, *self.event_shape[:1], self.V.shape[-1])
            return low_rank_density(mean, self.covariances, known).reshape(self.batch_shape)
        return self._log_prob_of_each(known)

    def _log_prob_of_each(self, known: OutputStatistics) -> Tensor:
        """Hyperparameters differ within the batch: one after the other."""
        n_batch = len(self.batch_shape)
        V = self.V.expand(self.batch_shape + self.V.shape[-2:]).flatten(end_dim=n_batch - 1)
        spread = [
            part.expand(self.batch_shape + part.shape[part.dim() - n :]).flatten(end_dim=n_batch - 1)
            for part, n in zip(self.covariances, _N_DIMS, strict=True)
        ]
        each = [LowRankCovariances(*parts) for parts in zip(*spread, strict=True)]
        densities = [low_rank_density((c.functions @ v).unsqueeze(0), c, known) for c, v in zip(each, V, strict=True)]
        return torch.cat(densities).reshape(self.batch_shape)


def _white(like: Tensor, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=like.dtype, device=like.device)
