"""A kernel for each output, of one kind and with hyperparameters of its own; all are evaluated together.

The formulas are those of the shared kernels. A hyperparameter has a leading dimension of outputs, and a formula is
evaluated with the outputs last, ``(N, M, D)``, where they broadcast; the kernel returns ``(D, N, M)``.
"""

from __future__ import annotations

import math
from typing import Any

import pyro.contrib.gp.kernels as gp
import torch
from pyro.contrib.gp.kernels import Kernel, Product, Sum
from torch import Tensor

from pyro_gprn.network.kernels import ProductMatern, ProductMatern32, ProductMatern52, matern_product, parts

#: Hyperparameters that may differ between input columns: ``(D, P)``, or ``(D, 1)`` for one number for all columns.
_BY_COLUMN = ("lengthscale", "period")


class OwnKernel(Kernel):
    """What kernels for each output share. A hyperparameter without the dimension of outputs is that of all of them."""

    n_outputs: int  #: D

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """``(D, N, M)``, or the diagonals ``(D, N)``."""
        if diag:
            return self.forward(X).diagonal(dim1=-2, dim2=-1)
        outputs_last = super().forward(X, X if Z is None else Z)
        return outputs_last.movedim(-1, 0).expand(self.n_outputs, -1, -1)

    def _by_column(self, hyperparameter: Tensor) -> Tensor:
        """``(D or 1, 1, P or 1)``, to be broadcast to inputs ``(N, P)``."""
        return torch.atleast_2d(hyperparameter).unsqueeze(-2)


class OwnByDistance(OwnKernel, gp.Isotropy):
    """Kernels that depend on the distance of scaled inputs."""

    def _square_scaled_dist(self, X: Tensor, Z: Tensor | None = None) -> Tensor:
        scale = self._by_column(self.lengthscale)
        rows, columns = (self._slice_input(each) / scale for each in (X, X if Z is None else Z))
        squares = rows.square().sum(-1, keepdim=True) - 2 * rows @ columns.mT
        return (squares + columns.square().sum(-1).unsqueeze(-2)).clamp(min=0).movedim(0, -1)


class OwnRBF(OwnByDistance, gp.RBF):
    """An RBF kernel for each output."""


class OwnExponential(OwnByDistance, gp.Exponential):
    """An exponential kernel for each output."""


class OwnMatern32(OwnByDistance, gp.Matern32):
    """A Matérn-3/2 kernel for each output."""


class OwnMatern52(OwnByDistance, gp.Matern52):
    """A Matérn-5/2 kernel for each output."""


class OwnRationalQuadratic(OwnByDistance, gp.RationalQuadratic):
    """A rational quadratic kernel for each output."""


class OwnByColumn(OwnKernel, ProductMatern):
    """Products of one-dimensional Matérn kernels, one for each input column."""

    def correlation(self, X: Tensor, Z: Tensor) -> Tensor:
        scale = (2 * self.degree + 1) ** 0.5 / self._by_column(self.lengthscale)
        rows, columns = (self._slice_input(each) * scale for each in (X, Z))
        return matern_product(rows, columns, self.degree).movedim(0, -1)


class OwnProductMatern32(OwnByColumn, ProductMatern32):
    """A product of Matérn-3/2 kernels for each output."""


class OwnProductMatern52(OwnByColumn, ProductMatern52):
    """A product of Matérn-5/2 kernels for each output."""


class OwnPeriodic(OwnKernel, gp.Periodic):
    """A periodic kernel for each output."""

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        if diag:
            return super().forward(X, diag=True)
        rows, columns = (self._slice_input(each) for each in (X, X if Z is None else Z))
        apart = rows[:, None, None] - columns[:, None]  # (N, M, 1, P)
        waves = torch.sin(math.pi * apart / torch.atleast_2d(self.period)) / torch.atleast_2d(self.lengthscale)
        outputs_last = self.variance * torch.exp(-2 * waves.square().sum(-1))
        return outputs_last.movedim(-1, 0).expand(self.n_outputs, -1, -1)


class OwnLinear(OwnKernel, gp.Linear):
    """A linear kernel for each output."""

    def _dot_product(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        return super()._dot_product(X, Z, diag).unsqueeze(-1)


class OwnConstant(OwnKernel, gp.Constant):
    """A constant for each output."""

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        shape = (len(X),) if diag else (len(X), len(X if Z is None else Z))
        return self.variance.reshape(-1, *(1 for _ in shape)).expand(self.n_outputs, *shape)


_KINDS: dict[type[Kernel], type[OwnKernel]] = {
    gp.RBF: OwnRBF,
    gp.Exponential: OwnExponential,
    gp.Matern32: OwnMatern32,
    gp.Matern52: OwnMatern52,
    gp.RationalQuadratic: OwnRationalQuadratic,
    ProductMatern32: OwnProductMatern32,
    ProductMatern52: OwnProductMatern52,
    gp.Periodic: OwnPeriodic,
    gp.Linear: OwnLinear,
    gp.Constant: OwnConstant,
}
_SHARED = {own: shared for shared, own in _KINDS.items()}


def own_kernels(kernel: Kernel, n_outputs: int, name: str = "kernel") -> Kernel:
    """A kernel like the given one for each output, all with its values: ``(D, N, M)``.

    :param kernel: a kernel that outputs could share, out of those that have names
        (:data:`~pyro_gprn.network.kernels.KERNELS`), their sums and products.
    :param n_outputs: ``D``.
    :param name: what the kernel is called in an error.
    :raises ValueError: for a kernel of another class, with a prior, or with a hyperparameter that is held.

    >>> kernels = own_kernels(gp.Sum(gp.RBF(2), gp.Constant(2)), n_outputs=3)
    >>> kernels(torch.rand(5, 2), torch.rand(4, 2)).shape, kernels.kern0.variance.shape
    (torch.Size([3, 5, 4]), torch.Size([3]))
    """
    if type(kernel) in (Sum, Product):
        both = (own_kernels(part, n_outputs, name) if isinstance(part, Kernel) else part for part in _both(kernel))
        return type(kernel)(*both)
    if type(kernel) not in _KINDS or kernel._pyro_samples or kernel._buffers:
        is_known = type(kernel) in _KINDS
        what = "a prior or a held hyperparameter" if is_known else f"a kernel of class {type(kernel).__name__}"
        known = ", ".join(kind.__name__ for kind in _KINDS)
        raise ValueError(
            f"for each output {name} may have a kernel of its own if it is out of {known}, their sums and products,"
            f" without priors (these go onto the model's kernel afterwards); got {what}"
        )
    own = _KINDS[type(kernel)](kernel.input_dim, active_dims=list(kernel.active_dims))
    own.n_outputs = n_outputs
    for parameter in kernel._pyro_params:
        value = getattr(kernel, parameter).detach()
        value = value.reshape(-1) if parameter in _BY_COLUMN else value
        setattr(own, parameter, value.repeat(n_outputs, *(1 for _ in value.shape)))
    return own


def shared_kernel(kernel: Kernel) -> Kernel:
    """A kernel that outputs share, of the kind of which each has its own, with the values of the first output.

    A kernel that is shared, and one that has a prior, come back as they are.

    >>> type(shared_kernel(own_kernels(gp.RBF(2), n_outputs=3))).__name__
    'RBF'
    """
    if any(type(part) not in _SHARED or part._pyro_samples for part in parts(kernel)):
        return kernel
    if type(kernel) in (Sum, Product):
        both = (shared_kernel(part) if isinstance(part, Kernel) else part for part in _both(kernel))
        return type(kernel)(*both)
    shared = _SHARED[type(kernel)](kernel.input_dim, active_dims=list(kernel.active_dims))
    for parameter in kernel._pyro_params:
        setattr(shared, parameter, getattr(kernel, parameter).detach()[0])
    return shared


def _both(kernel: Kernel) -> tuple[Any, Any]:
    return kernel.kern0, kernel.kern1
