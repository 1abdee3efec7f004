"""Linear algebra that every other module leans on.

The only home of jitter (:func:`safe_cholesky`), of square roots of singular covariances
(:func:`covariance_root`) and of products along one mode of a tensor (:func:`along_mode`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from pyro.ops.integrator import register_exception_handler
from torch import Tensor

#: Relative jitters that are tried in turn if the matrix as it is has no Cholesky factor.
_JITTERS = {
    torch.float64: (1e-12, 1e-10, 1e-8, 1e-6, 1e-4),
    torch.float32: (1e-6, 1e-5, 1e-4, 1e-3),
}


#: True where jitter is added without a warning.
_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)


@contextmanager
def quiet_jitter() -> Iterator[None]:
    """Lets :func:`safe_cholesky` add jitter without a warning. On the way to an optimum, jitter is nothing to report.

    (``warnings.catch_warnings`` would change the filters of all threads.)

    >>> with quiet_jitter():
    ...     singular = safe_cholesky(torch.ones(2, 2))
    """
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


class NotPositiveDefiniteError(ValueError):
    """A matrix that should be a covariance has no Cholesky factor, even with jitter."""


def _is_not_positive_definite(error: BaseException | None) -> bool:
    """True for that error, also where Pyro has wrapped it into one that names the site."""
    return error is not None and (
        isinstance(error, NotPositiveDefiniteError) or _is_not_positive_definite(error.__cause__)
    )


# A step of NUTS that leads to such a matrix is a divergence, which NUTS counts, and goes on elsewhere.
register_exception_handler("pyro_gprn", _is_not_positive_definite, warn_on_overwrite=False)


def safe_cholesky(matrix: Tensor, *, jitter: float = 0.0, name: str = "matrix") -> Tensor:
    """Lower Cholesky factor of a covariance, with jitter where rounding calls for it.

    :param matrix: symmetric positive semi-definite, ``(*batch, n, n)``.
    :param jitter: added to the diagonal from the start, relative to the mean diagonal. When the
        factorisation fails, it grows by steps, with a warning.
    :param name: what the matrix is called in the warning and in the error.
    :returns: ``L`` with ``L Lᵀ = matrix`` (plus jitter), ``(*batch, n, n)``.
    :raises NotPositiveDefiniteError: for NaN, inf, or where the largest jitter does not help.

    >>> safe_cholesky(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    tensor([[2., 0.],
            [1., 2.]])
    """
    # A diagonal of zeros (zero variance) still needs something to scale the jitter with.
    scale = matrix.detach().diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=torch.finfo(matrix.dtype).tiny)
    for extra in (jitter, *(step for step in _JITTERS[matrix.dtype] if step > jitter)):
        nudged = add_to_diagonal(matrix, extra * scale) if extra > 0 else matrix
        factor, info = torch.linalg.cholesky_ex(nudged)
        if not info.any():
            if extra > jitter and not _is_quiet.get():
                warnings.warn(
                    f"{name} is not numerically positive definite; its Cholesky factorisation was given"
                    f" a relative jitter of {extra:.0e}.",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return factor
    problem = "is not positive definite" if torch.isfinite(matrix).all() else "holds NaN or inf"
    raise NotPositiveDefiniteError(
        f"{name}, of shape {tuple(matrix.shape)}, {problem}, and a relative jitter of"
        f" {_JITTERS[matrix.dtype][-1]:.0e} did not help. Check the kernel's length-scales and variances"
        " (not huge, not zero), or raise the noise."
    )


def covariance_root(matrix: Tensor) -> Tensor:
    """A square root ``R`` with ``R Rᵀ = matrix`` for a covariance that may be singular.

    For drawing samples: at training inputs a conditional covariance is zero up to rounding, where
    no Cholesky factor exists. Negative eigenvalues (rounding) count as zero.

    :param matrix: symmetric positive semi-definite, ``(*batch, n, n)``.
    :returns: ``(*batch, n, n)``.

    >>> covariance_root(torch.zeros(2, 2))
    tensor([[0., 0.],
            [0., 0.]])
    """
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0.0).sqrt().unsqueeze(-2)


def as_correlation(covariance: Tensor) -> Tensor:
    """A covariance ``(…, n, n)`` scaled to a unit diagonal.

    >>> as_correlation(torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    scale = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=torch.finfo(covariance.dtype).tiny).sqrt()
    return covariance / (scale.unsqueeze(-1) * scale.unsqueeze(-2))


def identity_like(size: int, like: Tensor) -> Tensor:
    """The identity matrix, ``(size, size)``, in the type and on the device of ``like``.

    >>> identity_like(2, torch.zeros(1, dtype=torch.float64))
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    return torch.eye(size, dtype=like.dtype, device=like.device)


def add_to_diagonal(matrix: Tensor, level: Tensor) -> Tensor:
    """``matrix + level I``, ``(*batch, n, n)`` for a matrix and a level of shape ``batch``; no identity is built.

    >>> add_to_diagonal(torch.ones(2, 2), torch.tensor(3.0))
    tensor([[4., 1.],
            [1., 4.]])
    """
    # Not in place: pyro.render_model would not see that the result depends on the level.
    diagonal = matrix.diagonal(dim1=-2, dim2=-1) + level.unsqueeze(-1)
    matrix = matrix.expand(*diagonal.shape, matrix.shape[-1])  # where only the level has a batch
    return torch.diagonal_scatter(matrix, diagonal, dim1=-2, dim2=-1)


def along_mode(apply: Callable[[Tensor], Tensor], tensor: Tensor, mode: int, n_modes: int) -> Tensor:
    """Applies a linear map of matrices ``(…, size, columns)`` along one mode of a tensor.

    Modes are the last ``n_modes`` dimensions; those before them are batch dimensions. Nothing is permuted:
    the modes before ``mode`` become batch dimensions, those after it columns.

    :param apply: maps ``(*batch, left, size, columns)`` to ``(*batch, left, new_size, columns)``.
    :param tensor: ``(*batch, t_1, …, t_r)``.
    :param mode: which of the modes, from 0.
    :param n_modes: ``r``.
    :returns: ``(*batch, t_1, …, new_size, …, t_r)``.

    >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> along_mode(lambda columns: swap @ columns, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 1, 2)
    tensor([[2., 1.],
            [4., 3.]])
    """
    batch, modes = tensor.shape[: tensor.dim() - n_modes], tensor.shape[tensor.dim() - n_modes :]
    before, size, after = modes[:mode], modes[mode], modes[mode + 1 :]
    folded = tensor.reshape(*batch, math.prod(before), size, math.prod(after))
    if mode < n_modes - 1:
        result = apply(folded)
    else:  # no modes come after this one: those before it become the columns instead
        result = apply(folded.squeeze(-1).mT.unsqueeze(-3)).squeeze(-3).mT.unsqueeze(-1)
    return result.reshape(*result.shape[:-3], *before, -1, *after)
