"""Gaussians whose covariance is a Kronecker product: over tensors and over matrices.

Vectorisation is row-major, the first mode slowest: the covariance of ``x.reshape(-1)`` is
``A_1 ⊗ A_2 ⊗ … ⊗ A_r`` with ``A_m = L_m L_mᵀ`` the covariance of mode ``m``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from pyro_gprn.algebra.factors import Factor, as_factor
from pyro_gprn.algebra.linalg import along_mode


class TensorNormal(TorchDistribution):
    """Tensor-normal distribution: ``x = loc + z ×_1 L_1 ×_2 … ×_r L_r`` with white noise ``z``.

    :param loc: mean, ``(*batch, t_1, …, t_r)``.
    :param scale_trils: one for each mode: a lower-triangular matrix ``(*batch, t_m, t_m)``, a vector of
        standard deviations ``(*batch, t_m)`` for a diagonal, or None for the identity, which is never
        built. How many there are says how many trailing dimensions of ``loc`` are modes.

    >>> weights = TensorNormal(torch.zeros(5, 3, 2), [0.5 * torch.eye(5), None, torch.tensor([1.0, 2.0])])
    >>> weights.event_shape, weights.variance[0, 0]
    (torch.Size([5, 3, 2]), tensor([0.2500, 1.0000]))
    >>> weights.rsample((7,)).shape
    torch.Size([7, 5, 3, 2])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # factors are checked one by one, below
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        scale_trils: Sequence[Factor | Tensor | None],
        validate_args: bool | None = None,
    ) -> None:
        modes = _modes(loc.shape, len(scale_trils))
        factors = tuple(as_factor(value, size, loc) for value, size in zip(scale_trils, modes, strict=True))
        batch_shape = torch.broadcast_shapes(loc.shape[: -len(modes)], *(factor.batch_shape for factor in factors))
        self._loc = loc.expand(batch_shape + modes)
        self._like = loc.new_empty(())  # for dtype and device
        self.set_up(factors, batch_shape, is_centred=False, validate_args=validate_args)

    @classmethod
    def centred(
        cls, event_shape: Sequence[int], scale_trils: Sequence[Factor | Tensor | None], *, like: Tensor
    ) -> TensorNormal:
        """The tensor-normal with mean zero, which is not built either; ``like`` gives dtype and device.

        >>> TensorNormal.centred((10**4, 10**4, 10**4), [None] * 3, like=torch.zeros(())).loc.stride()
        (0, 0, 0)
        """
        new = TensorNormal(like.new_zeros(()).expand(tuple(event_shape)), scale_trils)
        new.is_centred = True
        return new

    def set_up(
        self, factors: tuple[Factor, ...], batch_shape: Size, *, is_centred: bool, validate_args: bool | None
    ) -> None:
        """The part of construction that subclasses share, also those that hold their mean in another form."""
        self.factors = factors
        self.is_centred = is_centred
        super().__init__(batch_shape, Size(factor.size for factor in factors), validate_args=validate_args)
        if self._validate_args:
            for mode, factor in enumerate(factors):
                if not factor.is_valid():
                    raise ValueError(
                        f"the scale factor of mode {mode} must be lower-triangular with a positive diagonal and"
                        " without NaN; for a covariance pass its Cholesky factor"
                    )

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: Sequence[int], _instance: TensorNormal | None = None) -> TensorNormal:
        new = self._get_checked_instance(TensorNormal, _instance)
        batch_shape = Size(batch_shape)
        new._loc = self._loc.expand(batch_shape + self.event_shape)
        new._like = self._like
        new.set_up(self.factors, batch_shape, is_centred=self.is_centred, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def loc(self) -> Tensor:
        return self._loc

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return outer(factor.variance() for factor in self.factors).expand(self.shape())

    @property
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    @property
    def scale_trils(self) -> tuple[Tensor, ...]:
        """The factors as matrices ``(*batch, t_m, t_m)``, the identity included. For small cases only."""
        return tuple(factor.dense() for factor in self.factors)

    @property
    def covariance_matrix(self) -> Tensor:
        """The dense covariance of ``x.reshape(-1)``, ``(*batch, T, T)``. For small cases only."""
        root = reduce(_kronecker, self.scale_trils)
        total = self.event_shape.numel()
        return (root @ root.mT).expand((*self.batch_shape, total, total))

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        white = torch.randn(self._extended_shape(Size(sample_shape)), dtype=self._like.dtype, device=self._like.device)
        return self.loc + self.colour(white)

    def colour(self, white: Tensor) -> Tensor:
        """``white ×_1 L_1 … ×_r L_r``, ``(…, t_1, …, t_r)``: white noise turned into a draw of ``x − loc``."""
        for mode, factor in enumerate(self.factors):
            white = along_mode(factor.multiply, white, mode, len(self.factors))
        return white

    def whiten(self, difference: Tensor) -> Tensor:
        """``difference ×_1 L_1⁻¹ … ×_r L_r⁻¹``, ``(…, t_1, …, t_r)``: turns ``x − loc`` into white noise."""
        for mode, factor in enumerate(self.factors):
            difference = along_mode(factor.solve, difference, mode, len(self.factors))
        return difference

    def log_det(self) -> Tensor:
        """The log-determinant of the whole covariance, ``batch_shape``: ``2 Σ_m (T/t_m) log|L_m|``."""
        total = self.event_shape.numel()
        terms = (2.0 * (total / factor.size) * factor.log_det() for factor in self.factors)
        return sum(terms, start=self._like.new_zeros(self.batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        squared = self.whiten(value - self.loc).square().flatten(-len(self.factors)).sum(-1)
        return -0.5 * (squared + self.log_det() + self.event_shape.numel() * math.log(2 * math.pi))

    def entropy(self) -> Tensor:
        return 0.5 * (self.log_det() + self.event_shape.numel() * (1 + math.log(2 * math.pi)))

    def squared_distance_to(self, other: TensorNormal) -> Tensor:
        """``‖(⊗ L_m⁻¹)(loc − other.loc)‖²`` with the factors ``L_m`` of ``other``, ``batch_shape``."""
        difference = self.loc if other.is_centred else self.loc - other.loc
        return other.whiten(difference).square().flatten(-len(self.factors)).sum(-1)


class MatrixNormal(TensorNormal):
    """Matrix-normal distribution: ``x = loc + L_row z L_colᵀ``, covariance ``Σ ⊗ Ω`` of ``x.reshape(-1)``.

    :param loc: mean, ``(*batch, n, k)``.
    :param scale_tril_row: square root of the row covariance Σ: matrix ``(*batch, n, n)``, vector or None.
    :param scale_tril_col: square root of the column covariance Ω: matrix ``(*batch, k, k)``, vector or None.

    >>> functions = MatrixNormal(torch.zeros(5, 2), torch.eye(5), None)
    >>> functions.log_prob(torch.zeros(5, 2)) == -5 * math.log(2 * math.pi)
    tensor(True)
    """

    def __init__(
        self,
        loc: Tensor,
        scale_tril_row: Factor | Tensor | None,
        scale_tril_col: Factor | Tensor | None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(loc, (scale_tril_row, scale_tril_col), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: TensorNormal | None = None) -> TensorNormal:
        return super().expand(batch_shape, self._get_checked_instance(MatrixNormal, _instance))


def outer(vectors: Iterable[Tensor]) -> Tensor:
    """The outer product ``(*batch, t_1, …, t_r)`` of vectors ``(*batch, t_m)``.

    >>> outer([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])])
    tensor([[3., 4.],
            [6., 8.]])
    """
    factors = list(vectors)
    spread = (
        vector.reshape(vector.shape[:-1] + (1,) * mode + vector.shape[-1:] + (1,) * (len(factors) - mode - 1))
        for mode, vector in enumerate(factors)
    )
    return reduce(torch.mul, spread)


def _kronecker(left: Tensor, right: Tensor) -> Tensor:
    """Kronecker product of matrices ``(*batch, m, m)`` and ``(*batch, n, n)``; torch.kron has no batch."""
    product = torch.einsum("...ij,...kl->...ikjl", left, right)
    return product.flatten(-4, -3).flatten(-2, -1)


def _modes(shape: Size, n_modes: int) -> Size:
    if not 1 <= n_modes <= len(shape):
        raise ValueError(
            f"scale_trils needs one entry for each mode of loc; got {n_modes} for a loc of shape {tuple(shape)}"
        )
    return shape[-n_modes:]
