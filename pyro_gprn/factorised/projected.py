"""A tensor-normal whose mean is a projection of the data, and the best projection."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

from pyro_gprn.algebra.factors import Factor, Identity, as_factor
from pyro_gprn.algebra.tensor_normal import TensorNormal
from pyro_gprn.factorised.posterior import row_second_moment
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
        return project(self.projection, self.outputs.read(slice(None))).reshape(self.event_shape)

    def squared_distance_to(self, other: TensorNormal) -> Tensor:
        """As in the base class, but from the Gram matrix if ``other`` is the weights' prior, or projects the same Y."""
        # ‖L_w⁻¹ B_k Y‖² = tr(L_w⁻¹ B_k G B_kᵀ L_w⁻ᵀ), summed over the latents k
        rows, *rest = other.factors
        difference = self._projection_less(other)
        if difference is None or not all(isinstance(factor, Identity) for factor in rest):
            return super().squared_distance_to(other)
        whitened = rows.solve(difference)
        return ((whitened @ self.gram) * whitened).sum()

    def _projection_less(self, other: TensorNormal) -> Tensor | None:
        """The projection of the same outputs that is the difference of the means, if there is one."""
        if other.is_centred:
            return self.projection
        if isinstance(other, ProjectedTensorNormal) and other.outputs is self.outputs:
            return self.projection - other.projection
        return None


def project(projection: Tensor, values: Tensor) -> Tensor:
    """``B Y``, ``(N, K, D)``, for ``B`` of shape ``(K, N, N)`` and values ``Y``, ``(N, D)``.

    >>> project(2 * torch.eye(5).expand(3, 5, 5), torch.ones(5, 7)).shape
    torch.Size([5, 3, 7])
    """
    return torch.tensordot(projection, values.to(projection.dtype), dims=1).transpose(0, 1)


def best_projection(q_f: Distribution, prior_w: TensorNormal, noise: Tensor, observed: Tensor | None = None) -> Tensor:
    """The best mean of the weights given all else, for outputs with the same holes, as a projection of Y.

    :param q_f: posterior of the functions, over ``(N, K)``.
    :param prior_w: prior of the weights, over ``(N, K, d_1, …, d_M)``.
    :param noise: ``σ_y``, one number.
    :param observed: the rows in which the outputs were observed, ``(N,)``; None is all. Values in others count as zero.
    :returns: ``L_w⁻¹B``, the whitened projection, ``(K, N, N)``.

    >>> from pyro_gprn import MatrixNormal
    >>> q_f = MatrixNormal(torch.ones(5, 2), 1e-6 * torch.ones(5), None)
    >>> best_projection(q_f, TensorNormal(torch.zeros(5, 2, 3), [None] * 3), torch.tensor(1.0))[0, 0, 0]
    tensor(0.3333)
    """
    # Whitened, 𝒰_kd = L_w x_kd. The bound in x_d is −½ x_dᵀA x_d / σ_y² + x_dᵀR y_d / σ_y² with
    #   A_(kp)(jq) = Σ_n L_np E[h_n h_nᵀ]_kj L_nq + σ_y² δ        R_(kp)n = L_np m_nk
    # the same for every output that is observed in the same rows, over which n runs, so that x_d = B̃ y_d with B̃ = A⁻¹R.
    if noise.dim() > 0:
        raise ValueError("the best mean of the weights is a projection of Y only with one noise_y for all outputs")
    N, K = q_f.event_shape
    Lw = prior_w.factors[0].dense()
    if observed is not None:
        Lw = Lw * observed.to(Lw).unsqueeze(-1)
    A = torch.einsum("np,nkj,nq->kpjq", Lw, row_second_moment(q_f), Lw).reshape(K * N, K * N)
    A.diagonal().add_(noise.square())
    R = torch.einsum("np,nk->kpn", Lw, q_f.mean).reshape(K * N, N)
    return torch.linalg.solve(A, R).reshape(K, N, N)
