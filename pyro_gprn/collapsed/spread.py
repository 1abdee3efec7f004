"""The variance of an output between draws of the functions, as a quadratic form in few directions.

Between draws the mean ``c̃ z_d`` of an output varies with ``z_dᵀ Σ z_d``, Σ the covariance of c̃ over draws (a matrix for
each new input, conditioned.py has the coordinates z). The outputs vary in many directions and so does c̃, but there are
few in which both do. We rotate the coordinates, once for a fit, such that the first r hold almost all of the variance
between draws at inputs that lie among the training inputs. Then

    z_dᵀ Σ z_d ≈ (1 + ε) Σ_{a≤b≤r} m_ab Σ_ab u_ad u_bd     u = Oᵀ z     m_ab = 1 on the diagonal, 2 beside it

which is one matrix product of forms, a row for each new input, with features ``u_a u_b`` of the outputs. Where
something is left out, ε makes the sum over all outputs exact at each input.

What is left out: directions that have together at most :data:`DROPPED` of the variance between draws; and with very
many outputs all but the first sixteen directions (:func:`most_directions`). With sixteen training rows or less nothing
is left out, nor with sixteen outputs or less in each group: then the directions are those in which these lie. On five
problems with 2,000 outputs (smooth and noisy fields, fronts, unstructured outputs; N = 64 and 80), sixteen directions
gave standard deviations that were wrong by 0.03 to 3 % for one in a hundred outputs, and by 0.1 to 10 % at worst. An
average over 128 draws has the variance between draws to about 12 %.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_gprn.pyro_state import new_generator

#: So many directions are kept if there are as many.
LEAST = 16
#: More are kept if all outputs have at most this many features together.
MOST_FEATURES = 2**20
#: What the directions that are left out may have of the variance between draws.
DROPPED = 1e-5
#: Inputs at which it is found out which directions matter.
N_REFERENCES = 128


def inputs_between(X: Tensor) -> Tensor:
    """Inputs that lie among given ones ``(N, P)``: on lines between two of them, at random places, ``(128, P)``.

    The same inputs always give the same places.
    """
    generator = new_generator(0)
    first, second = torch.randint(len(X), (2, N_REFERENCES), generator=generator, device="cpu").to(X.device)
    place = torch.rand(N_REFERENCES, 1, generator=generator, dtype=X.dtype, device="cpu").to(X.device)
    return place * X[first] + (1.0 - place) * X[second]


def most_directions(n_outputs: int) -> int:
    """How many directions are kept at most for so many outputs.

    >>> most_directions(100), most_directions(1000), most_directions(10**6)
    (144, 45, 16)
    """
    return max(LEAST, int((2 * MOST_FEATURES / n_outputs + 0.25) ** 0.5 - 0.5))


class Directions(NamedTuple):
    """The directions that are kept, orthonormal."""

    axes: Tensor | None = None  #: ``(g, N, r)``; None is all of the coordinates
    is_all: bool = True  #: True if no output varies along any other direction

    @classmethod
    def spanned_by(cls, outputs: Tensor) -> Directions:
        """The directions in which a few outputs of each group lie, ``(g, N, b)`` in white coordinates.

        >>> Directions.spanned_by(torch.tensor([[[3.0], [4.0]]])).axes.abs()
        tensor([[[0.6000],
                 [0.8000]]])
        """
        return cls(torch.linalg.qr(outputs).Q)

    @classmethod
    def leading(cls, covariance: Tensor, n_outputs: int) -> Directions:
        """Directions with almost all of a variance, for a covariance ``(g, N, N)`` of white outputs.

        >>> covariance = torch.diag(torch.logspace(0, -40, 41, dtype=torch.float64))[None]
        >>> Directions.leading(covariance, n_outputs=100).axes.shape
        torch.Size([1, 41, 16])
        """
        values, vectors = torch.linalg.eigh(covariance)
        values, vectors = values.flip(-1).clamp(min=0.0), vectors.flip(-1)
        total = values.sum(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
        dropped = 1.0 - values.cumsum(-1) / total  # by all after this one
        n_kept = 1 + int((dropped > DROPPED).sum(-1).max())
        return cls(vectors[..., : min(max(n_kept, LEAST), most_directions(n_outputs))], is_all=False)


def quadratic_forms(deviations: Tensor, directions: Directions) -> Tensor:
    """The forms of new inputs, ``(g, N*, r (r + 1) / 2)``, to be multiplied with :func:`products_of_pairs`.

    :param deviations: c̃ of each draw less its mean, ``(s, g, N*, N)``.
    :param directions: those that are kept.
    """
    kept = deviations if directions.axes is None else deviations @ directions.axes.unsqueeze(0)
    kept = kept.movedim(0, -2)  # (g, N*, s, r)
    covariance = kept.mT @ kept / kept.shape[-2]
    if not directions.is_all:
        total = deviations.square().sum((0, -1)) / len(deviations)
        found = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
        scale = torch.where(found > 0, total / found, 1.0)
        covariance = covariance * scale[..., None, None]
    first, second = torch.triu_indices(*covariance.shape[-2:], device=covariance.device)
    return covariance[..., first, second] * torch.where(first == second, 1.0, 2.0).to(covariance)


def n_pairs(n: int) -> int:
    """How many pairs a ≤ b of n numbers there are: ``n (n + 1) / 2``."""
    return n * (n + 1) // 2


def products_of_pairs(values: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``u_a u_b`` for all pairs a ≤ b of rows, ``(r (r + 1) / 2, D)`` for ``u`` of shape ``(r, D)``.

    :param out: a tensor to be filled in place of a new one.

    >>> products_of_pairs(torch.tensor([[2.0], [3.0]])).flatten()
    tensor([4., 6., 9.])
    """
    n_rows = len(values)
    result = values.new_empty(n_pairs(n_rows), values.shape[1]) if out is None else out
    start = 0
    for row in range(n_rows):
        torch.mul(values[row], values[row:], out=result[start : start + n_rows - row])
        start += n_rows - row
    return result
