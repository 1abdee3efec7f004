"""The factors of a Kronecker-factored covariance.

A factor is a square root ``L`` of one mode's covariance ``L Lᵀ``: a lower-triangular matrix, a
diagonal, or the identity, which is never built. All three have the same methods, so nothing
that uses them needs to know which is which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_gprn.algebra.linalg import identity_like


class Factor(ABC):
    """A square root ``L`` of one mode's covariance; ``size`` is the mode's size.

    Matrices it acts on are ``(*batch, left, size, columns)``, as :func:`~pyro_gprn.algebra.linalg.along_mode`
    makes them; scalars it returns have the factor's own ``batch_shape``.
    """

    size: int
    batch_shape: torch.Size

    @abstractmethod
    def multiply(self, columns: Tensor) -> Tensor:
        """``L @ columns``, of the shape of ``columns``."""

    @abstractmethod
    def solve(self, columns: Tensor) -> Tensor:
        """``L⁻¹ @ columns``, of the shape of ``columns``."""

    @abstractmethod
    def log_det(self) -> Tensor | float:
        """``log |L|``, ``batch_shape``."""

    @abstractmethod
    def variance(self) -> Tensor:
        """The diagonal of ``L Lᵀ``, ``(*batch, size)``; ``(size,)`` without a batch."""

    @abstractmethod
    def precision(self) -> Tensor:
        """The diagonal of ``(L Lᵀ)⁻¹``, shaped as :meth:`variance`."""

    @abstractmethod
    def trace_ratio(self, of: Factor) -> Tensor | float:
        """``tr((L Lᵀ)⁻¹ A Aᵀ)``, ``batch_shape``, where ``A`` is the factor ``of``."""

    @abstractmethod
    def dense(self) -> Tensor:
        """``L`` as a matrix, ``(*batch, size, size)``. For small sizes only."""

    @abstractmethod
    def select(self, index: Tensor) -> Factor:
        """The factor of the covariance restricted to its rows and columns ``index``, ``(n,)``."""

    @abstractmethod
    def is_valid(self) -> bool:
        """Whether ``L`` is lower-triangular with a positive diagonal, and free of NaN."""

    def trace(self) -> Tensor | float:
        """``tr(L Lᵀ)``, ``batch_shape``."""
        return self.variance().sum(-1)

    def covariance(self) -> Tensor:
        """``L Lᵀ`` as a matrix, ``(*batch, size, size)``. For small sizes only."""
        root = self.dense()
        return root @ root.mT


class Identity(Factor):
    """The identity of a given size, with the dtype and device of ``like``; holds no matrix.

    >>> Identity(3, torch.zeros(())).variance()
    tensor([1., 1., 1.])
    """

    def __init__(self, size: int, like: Tensor) -> None:
        self.size = size
        self.batch_shape = torch.Size()
        self._like = like

    def multiply(self, columns: Tensor) -> Tensor:
        return columns

    def solve(self, columns: Tensor) -> Tensor:
        return columns

    def log_det(self) -> float:
        return 0.0

    def variance(self) -> Tensor:
        return self._like.new_ones(()).expand(self.size)

    def precision(self) -> Tensor:
        return self.variance()

    def trace(self) -> float:
        return float(self.size)

    def trace_ratio(self, of: Factor) -> Tensor | float:
        return of.trace()

    def dense(self) -> Tensor:
        return identity_like(self.size, self._like)

    def select(self, index: Tensor) -> Factor:
        return Identity(len(index), self._like)

    def is_valid(self) -> bool:
        return True


class Diagonal(Factor):
    """A diagonal of positive standard deviations ``scale``, ``(*batch, size)``.

    >>> Diagonal(torch.tensor([1.0, 2.0])).variance()
    tensor([1., 4.])
    """

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale
        self.size = scale.shape[-1]
        self.batch_shape = scale.shape[:-1]

    def multiply(self, columns: Tensor) -> Tensor:
        return self.scale[..., None, :, None] * columns

    def solve(self, columns: Tensor) -> Tensor:
        return columns / self.scale[..., None, :, None]

    def log_det(self) -> Tensor:
        return self.scale.log().sum(-1)

    def variance(self) -> Tensor:
        return self.scale.square()

    def precision(self) -> Tensor:
        return self.scale.square().reciprocal()

    def trace_ratio(self, of: Factor) -> Tensor:
        return (of.variance() * self.precision()).sum(-1)

    def dense(self) -> Tensor:
        return torch.diag_embed(self.scale)

    def select(self, index: Tensor) -> Factor:
        return Diagonal(self.scale[..., index])

    def is_valid(self) -> bool:
        return bool(constraints.positive.check(self.scale).all())


class Triangular(Factor):
    """A lower-triangular matrix ``scale_tril``, ``(*batch, size, size)``, with a positive diagonal.

    >>> Triangular(torch.tensor([[2.0, 0.0], [1.0, 2.0]])).covariance()
    tensor([[4., 2.],
            [2., 5.]])
    """

    def __init__(self, scale_tril: Tensor) -> None:
        self.scale_tril = scale_tril
        self.size = scale_tril.shape[-1]
        self.batch_shape = scale_tril.shape[:-2]

    def multiply(self, columns: Tensor) -> Tensor:
        return self.scale_tril.unsqueeze(-3) @ columns

    def solve(self, columns: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.scale_tril.unsqueeze(-3), columns, upper=False)

    def log_det(self) -> Tensor:
        return self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def variance(self) -> Tensor:
        return self.scale_tril.square().sum(-1)

    def precision(self) -> Tensor:
        return self._solve_matrix(Identity(self.size, self.scale_tril)).square().sum(-2)

    def trace_ratio(self, of: Factor) -> Tensor:
        return self._solve_matrix(of).square().sum((-2, -1))

    def dense(self) -> Tensor:
        return self.scale_tril

    def select(self, index: Tensor) -> Factor:
        # The selected rows S of L have S Sᵀ = the selected covariance; with Sᵀ = QR that is RᵀR.
        upper = torch.linalg.qr(self.scale_tril[..., index, :].mT, mode="r").R
        signs = upper.diagonal(dim1=-2, dim2=-1).sign()
        return Triangular(upper.mT * signs.unsqueeze(-2))

    def is_valid(self) -> bool:
        return bool(constraints.lower_cholesky.check(self.scale_tril).all())

    def _solve_matrix(self, of: Factor) -> Tensor:
        return torch.linalg.solve_triangular(self.scale_tril, of.dense(), upper=False)


def as_factor(value: Factor | Tensor | None, size: int, like: Tensor) -> Factor:
    """Reads one entry of ``scale_trils``: None becomes the identity, a vector a diagonal, a matrix a triangle.

    ``(size,)`` and ``(*batch, size)`` are diagonals, ``(*batch, size, size)`` is triangular. A batch of
    diagonals whose batch ends in ``size`` would read as a matrix: wrap it in :class:`Diagonal`.

    >>> type(as_factor(torch.ones(3), 3, torch.zeros(3))).__name__
    'Diagonal'
    """
    if isinstance(value, Factor):
        factor = value
    elif value is None:
        factor = Identity(size, like)
    elif value.dim() >= 2 and value.shape[-2:] == (size, size):
        factor = Triangular(value)
    elif value.dim() >= 1:
        factor = Diagonal(value)
    else:
        raise ValueError(
            f"a scale factor must be None, a vector or a matrix; got a tensor of shape {tuple(value.shape)}"
        )
    if factor.size != size:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"size {factor.size}"
        raise ValueError(
            f"a mode of size {size} needs a scale factor of shape ({size},) or ({size}, {size}); got {got}"
        )
    return factor
