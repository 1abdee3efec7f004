"""A tensor-normal whose mean is a projection of the data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Size, Tensor

from pyro_gprn.algebra.factors import Factor, Identity, as_factor
from pyro_gprn.algebra.tensor_normal import TensorNormal
from pyro_gprn.outputs.source import OutputSource, as_source


class ProjectedTensorNormal(TensorNormal):
    """Tensor-normal over ``(N, K, d_1, …, d_M)`` whose mean is held as a projection of the data, ``B Y``.

    The mean of output ``d`` is ``Σ_p B_knp Y_pd``: one ``B`` for all outputs. What the bound needs of it
    goes through the Gram matrix ``Y Yᵀ``; an array with an output dimension is built only when
    somebody asks for :attr:`loc`, a draw or a density.

    :param projection: ``B``, ``(K, N, N)``.
    :param outputs: ``Y``, ``(N, d_1, …, d_M)``, a tensor or an :class:`~pyro_gprn.outputs.source.OutputSource`. It is
        referred to, not copied.
    :param gram: ``Y Yᵀ`` over all outputs, ``(N, N)``.
    :param scale_trils: as for :class:`TensorNormal`, for the modes N, K, d_1, …, d_M.

    >>> Y = torch.randn(5, 1000)
    >>> weights = ProjectedTensorNormal(torch.eye(5).expand(2, 5, 5), Y, Y @ Y.T, [None, None, None])
    >>> weights.event_shape, torch.equal(weights.loc[:, 1], Y)
    (torch.Size([5, 2, 1000]), True)
    """

    def __init__(
        self,
        projection: Tensor,
        outputs: Tensor | OutputSource,
        gram: Tensor,
        scale_trils: Sequence[Factor | Tensor | None],
        validate_args: bool | None = None,
    ) -> None:
        n_latents, n_rows = projection.shape[:2]
        modes = (n_rows, n_latents, *outputs.shape[1:])
        self.projection, self.outputs, self.gram = projection, as_source(outputs), gram
        self._like = projection.new_empty(())
        factors = tuple(as_factor(value, size, self._like) for value, size in zip(scale_trils, modes, strict=True))
        self.set_up(factors, Size(), is_centred=False, validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: TensorNormal | None = None) -> TensorNormal:
        return self if Size(batch_shape) == Size() else TensorNormal(self.loc, self.factors).expand(batch_shape)

    @property
    def loc(self) -> Tensor:
        outputs = self.outputs.read(slice(None)).to(self._like.dtype)
        return torch.tensordot(self.projection, outputs, dims=1).transpose(0, 1).reshape(self.event_shape)

    def squared_distance_to(self, other: TensorNormal) -> Tensor:
        """As in the base class, but from the Gram matrix if ``other`` is a GPRN's prior of the weights."""
        # ‖L_w⁻¹ B_k Y‖² = tr(L_w⁻¹ B_k G B_kᵀ L_w⁻ᵀ), summed over the latents k
        rows, *rest = other.factors
        if not (other.is_centred and all(isinstance(factor, Identity) for factor in rest)):
            return super().squared_distance_to(other)
        whitened = rows.solve(self.projection)
        return ((whitened @ self.gram) * whitened).sum()
