"""Kernels by name, and as plain words that can be saved.

The kernels themselves are Pyro's (:mod:`pyro.contrib.gp.kernels`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pyro.contrib.gp.kernels as gp
import torch
from pyro.contrib.gp.kernels import Kernel, Product, Sum
from torch import Tensor
from torch.autograd.function import once_differentiable


class ProductMatern(gp.Isotropy):
    """A product of one-dimensional Matérn kernels, one for each input column: the standard of emulators.

    An input that does not matter has a long length-scale, and its factor is 1.
    """

    degree: int  #: of the polynomial beside the exponential: 1 or 2

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        if diag:
            return self._diag(X)
        return self.variance * self.correlation(X, X if Z is None else Z)

    def correlation(self, X: Tensor, Z: Tensor) -> Tensor:
        """The kernel for a variance of 1, ``(N, M)``."""
        scale = (2 * self.degree + 1) ** 0.5 / self.lengthscale
        return matern_product(self._slice_input(X) * scale, self._slice_input(Z) * scale, self.degree)


class ProductMatern32(ProductMatern):
    """``σ² Π_p (1 + r_p) exp(−r_p)`` with ``r_p = √3 |x_p − z_p| / l_p``.

    >>> X = torch.rand(5, 2)
    >>> factors = [gp.Matern32(1)(column) for column in X.T]
    >>> torch.allclose(ProductMatern32(2)(X), factors[0] * factors[1], atol=1e-5)
    True
    """

    degree = 1


class ProductMatern52(ProductMatern):
    """``σ² Π_p (1 + r_p + r_p²/3) exp(−r_p)`` with ``r_p = √5 |x_p − z_p| / l_p``.

    >>> kernel = ProductMatern52(3, lengthscale=torch.tensor([1.0, 2.0, 1e9]))
    >>> kernel(torch.rand(5, 3)).shape
    torch.Size([5, 5])
    """

    degree = 2


def matern_product(X: Tensor, Z: Tensor, degree: int) -> Tensor:
    """``Π_p (1 + r_p + …) exp(−r_p)`` over the columns of ``(*batch, N, P)`` and ``(*batch, M, P)``, scaled already.

    :param degree: of the polynomial: 1 for ``1 + r``, 2 for ``1 + r + r²/3``.
    :returns: ``(*batch, N, M)``.

    >>> matern_product(torch.zeros(4, 2, 3), torch.zeros(4, 5, 3), degree=1).shape
    torch.Size([4, 2, 5])
    """
    return _MaternProduct.apply(X, Z, degree)


#: Numbers in one array of a block: few enough for the processor's cache.
_BLOCK = 2**17
#: Columns whose polynomials are multiplied before a logarithm is taken.
_FACTORS = 8


class _MaternProduct(torch.autograd.Function):
    """The product over columns, with its gradient by hand; both are computed for some rows at a time.

    The kernel is ``k = exp(Σ_p log q(r_p) − Σ_p r_p)``, where ``q`` is the polynomial. Logarithms take longest, so one
    is taken of a product of several polynomials. Where such a product overflows, ``Σ_p r_p`` is in the thousands: ``k``
    is 0, and stays so with the largest number in place of infinity.

    Since ``(q_d(r) exp(−r))' = −r q_{d−1}(r) exp(−r) / (2d − 1)``, with ``q_0 = 1``, the gradient by ``x_p`` is
    ``−k (x_p − z_p) q_{d−1}(r_p) / q_d(r_p) / (2d − 1)``, and that by ``z_p`` is its negative.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, Z: Tensor, degree: int) -> Tensor:
        logarithm = -torch.cdist(X, Z, p=1)  # −Σ_p r_p, symmetric to the bit if Z is X
        largest = torch.finfo(logarithm.dtype).max
        for rows, apart in _blocks(X, Z):
            for factors in _polynomial(apart.abs_(), degree).split(_FACTORS, dim=-3):
                logarithm[..., rows, :] += factors.prod(-3).clamp_(max=largest).log_()
        value = logarithm.exp_()
        ctx.save_for_backward(X, Z, value)
        ctx.degree = degree
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        X, Z, value = ctx.saved_tensors
        weight = upstream * value / (2 * ctx.degree - 1)
        by_X, by_Z = torch.empty_like(X), torch.zeros_like(Z)
        for rows, apart in _blocks(X, Z):
            r = apart.abs()
            slope = apart.mul_(weight[..., None, rows, :]).div_(_polynomial(r, ctx.degree))
            if ctx.degree > 1:
                slope *= _polynomial(r, ctx.degree - 1)
            by_X[..., rows, :] = -slope.sum(-1).mT
            by_Z += slope.sum(-2).mT
        return by_X, by_Z, None


def _blocks(X: Tensor, Z: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Some rows of X after another, each with its ``x_p − z_p``, ``(*batch, P, rows, M)``."""
    n_rows = max(1, _BLOCK // max(1, Z.numel()))
    columns = Z.mT.contiguous().unsqueeze(-2)
    for start in range(0, X.shape[-2], n_rows):
        rows = slice(start, start + n_rows)
        yield rows, X[..., rows, :].mT.unsqueeze(-1) - columns


def _polynomial(r: Tensor, degree: int) -> Tensor:
    """``q_1 = 1 + r`` or ``q_2 = 1 + r + r²/3``."""
    polynomial = 1 + r
    return polynomial if degree == 1 else polynomial.addcmul_(r, r, value=1 / 3)


#: What can be asked for by name.
KERNELS: dict[str, type[Kernel]] = {
    "rbf": gp.RBF,
    "matern32": gp.Matern32,
    "matern52": gp.Matern52,
    "product_matern32": ProductMatern32,
    "product_matern52": ProductMatern52,
    "exponential": gp.Exponential,
    "rational_quadratic": gp.RationalQuadratic,
    "periodic": gp.Periodic,
    "linear": gp.Linear,
    "constant": gp.Constant,
}
#: Parameters of which a kernel may have one for each input column.
_BY_COLUMN = ("lengthscale", "period")
_PARAMETERS = ("variance", "lengthscale", "period", "scale_mixture")


def named_kernel(expression: str, X: Tensor, name: str = "kernel") -> Kernel:
    """A kernel from words: names joined by ``+`` and ``*``.

    A name may be followed by the input columns that its kernel reads; otherwise it reads all. Each column has a
    length-scale (and a period) of its own, which starts at the column's standard deviation.

    :param expression: words such as ``"matern52"``, ``"rbf + periodic"`` or ``"periodic[0] * rbf[1, 2]"``.
    :param X: inputs, ``(N, P)``.
    :param name: what the kernel is called in an error.

    >>> kernel = named_kernel("periodic[0] * rbf[1, 2] + linear", torch.rand(10, 3))
    >>> kernel(torch.rand(5, 3)).shape, kernel.kern0.kern1.lengthscale.shape
    (torch.Size([5, 5]), torch.Size([2]))
    """
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
        return _build(tree, X)
    except (SyntaxError, _NotUnderstood) as error:
        reason = f": {error}" if isinstance(error, _NotUnderstood) else ""
        raise ValueError(
            f"{name} must be a Pyro kernel, or names out of {', '.join(KERNELS)} joined by + and *,"
            f" such as 'rbf + periodic[0]'; got {expression!r}{reason}"
        ) from None


class _NotUnderstood(Exception):
    """An expression that is no kernel."""


def _build(node: ast.expr, X: Tensor) -> Kernel:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        kind = Sum if isinstance(node.op, ast.Add) else Product
        return kind(_build(node.left, X), _build(node.right, X))
    columns = list(range(X.shape[1]))
    if isinstance(node, ast.Subscript):
        columns, node = _columns(node.slice, X), node.value
    if not isinstance(node, ast.Name) or node.id.lower() not in KERNELS:
        raise _NotUnderstood(f"{ast.unparse(node)!r} is none of them")
    kernel = KERNELS[node.id.lower()](len(columns), active_dims=columns)
    spread = X[:, columns].detach().std(0, correction=0)
    for parameter in _BY_COLUMN:
        if hasattr(kernel, parameter):
            setattr(kernel, parameter, torch.where(spread > 0, spread, 1.0))
    return kernel


def _columns(node: ast.expr, X: Tensor) -> list[int]:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        raise _NotUnderstood(f"columns must be numbers, got {ast.unparse(node)!r}") from None
    columns = list(value) if isinstance(value, tuple) else [value]
    if not all(isinstance(column, int) and 0 <= column < X.shape[1] for column in columns):
        raise _NotUnderstood(f"columns must lie between 0 and {X.shape[1] - 1}, got {columns}")
    return columns


def parts(kernel: Kernel) -> Iterator[Kernel]:
    """The single kernels of which a sum or product is made; a single kernel is its own only part.

    >>> [type(part).__name__ for part in parts(gp.Sum(gp.RBF(1), gp.Linear(1)))]
    ['RBF', 'Linear']
    """
    if isinstance(kernel, gp.Combination):
        for part in (kernel.kern0, kernel.kern1):
            if isinstance(part, Kernel):
                yield from parts(part)
    else:
        yield kernel


def hold_scale(kernel: Kernel) -> Kernel:
    """Holds the scale of a kernel at 1, in place, and returns the kernel.

    For a kernel whose scale is not identified beside that of another kernel. What is held is the variance of a single
    kernel, of each factor of a product, and of the first term of a sum.

    >>> [name for name, _ in hold_scale(gp.RBF(1)).named_parameters()]
    ['lengthscale_unconstrained']
    """
    if isinstance(kernel, Sum):
        hold_scale(kernel.kern0)
    elif isinstance(kernel, Product):
        for part in parts(kernel):
            hold_scale(part)
    else:
        del kernel.variance
        kernel.register_buffer("variance", torch.ones(()))
    return kernel


def plus_constant(kernel: Kernel, variance: float) -> Kernel:
    """The sum of a kernel and a constant one, whose variance is free.

    >>> kernel_words(plus_constant(gp.RBF(2), 0.01))
    'Sum(RBF[0, 1](lengthscale, variance), Constant[0, 1](variance))'
    """
    constant = gp.Constant(kernel.input_dim, variance=torch.tensor(variance), active_dims=list(kernel.active_dims))
    return Sum(kernel, constant)


def kernel_words(kernel: Kernel) -> str:
    """A kernel's classes and input columns, and which of its parameters are free, held or have priors; no values.

    >>> kernel_words(gp.Sum(gp.RBF(2), 1.0))
    'Sum(RBF[0, 1](lengthscale, variance), 1.0)'
    """
    if isinstance(kernel, gp.Combination):
        both = (kernel_words(part) if isinstance(part, Kernel) else str(part) for part in _both(kernel))
        return f"{type(kernel).__name__}({', '.join(both)})"
    free = sorted(name.removesuffix("_unconstrained") for name, _ in kernel.named_parameters())
    held = sorted(f"{name} held" for name, _ in kernel.named_buffers())
    return f"{type(kernel).__name__}{list(kernel.active_dims)}({', '.join([*free, *held])})"


def describe_kernel(kernel: Kernel, name: str = "kernel") -> dict[str, Any]:
    """A kernel's structure in plain words, for a file; its values are in its ``state_dict``.

    :param name: what the kernel is called in an error.
    :raises ValueError: for a kernel that only code can describe: one of an own class, with a warping or with a prior.

    >>> describe_kernel(gp.Sum(gp.RBF(2), 1.0))
    {'sum': [{'rbf': [0, 1], 'shapes': {'variance': [], 'lengthscale': []}, 'held': []}, 1.0]}
    """
    if type(kernel) in (Sum, Product):
        both = [part if isinstance(part, (int, float)) else describe_kernel(part, name) for part in _both(kernel)]
        return {"sum" if isinstance(kernel, Sum) else "product": both}
    known = {kind: word for word, kind in KERNELS.items()}
    if type(kernel) not in known or getattr(kernel, "_pyro_samples", None):
        what = "a prior" if type(kernel) in known else type(kernel).__name__
        raise ValueError(f"{name} has {what}, which a file without code cannot hold")
    present = [parameter for parameter in _PARAMETERS if hasattr(kernel, parameter)]
    return {
        known[type(kernel)]: list(kernel.active_dims),
        "shapes": {parameter: list(getattr(kernel, parameter).shape) for parameter in present},
        "held": [parameter for parameter in present if parameter in kernel._buffers],
    }


def _both(kernel: Kernel) -> tuple[Any, Any]:
    return kernel.kern0, kernel.kern1


def rebuild_kernel(description: dict[str, Any]) -> Kernel:
    """A kernel with the structure that :func:`describe_kernel` put into words; its values are still to be loaded.

    >>> kernel_words(rebuild_kernel(describe_kernel(gp.RBF(2))))
    'RBF[0, 1](lengthscale, variance)'
    """
    for word, kind in (("sum", Sum), ("product", Product)):
        if word in description:
            return kind(
                *(part if isinstance(part, (int, float)) else rebuild_kernel(part) for part in description[word])
            )
    word = next(word for word in KERNELS if word in description)
    kernel = KERNELS[word](len(description[word]), active_dims=list(description[word]))
    for parameter, shape in description["shapes"].items():
        if parameter in description["held"]:
            delattr(kernel, parameter)
            kernel.register_buffer(parameter, torch.ones(shape))
        else:
            setattr(kernel, parameter, torch.ones(shape))
    return kernel
