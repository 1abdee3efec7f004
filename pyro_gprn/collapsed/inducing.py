"""Inducing inputs: few inputs Z whose values stand for a process at all N rows.

A process with covariance ``κ`` and values ``u = L v`` at Z, with ``κ(Z, Z) = L Lᵀ`` and v white, has at a row x ::

    mean a v     variance left = κ(x, x) − ‖a‖²     a = κ(x, Z) L⁻ᵀ

For the functions, whose covariance is ``κ_f + σ_f² δ``, δ is 1 for one row and itself. An inducing input that is one of
the rows shares that row's noise, so that nothing is left there. With Z = X the rows of all a are L, and everything that
is built on them is the exact network.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_gprn.network.checks import check_inputs
from pyro_gprn.network.hyperparameters import for_each_draw

#: How many rows k-means++ looks at, if there are more.
MOST_LOOKED_AT = 20_000


class LowRankCovariances(NamedTuple):
    """What the hyperparameters make of N rows and m inducing inputs."""

    functions: Tensor  #: a of the functions, (N, m): their mean at the rows is this times V
    functions_left: Tensor  #: variance of a function given V, (N,)
    weights: Tensor  #: a of the weights, (N, m)
    weights_left: Tensor  #: variance of a weight given those at the inducing inputs, (N,)
    noise: Tensor  #: σ_y², ()


def at_rows(kernel: Kernel, X: Tensor, Z: Tensor, L: Tensor) -> tuple[Tensor, Tensor]:
    """``a``, ``(N, m)``, and ``left``, ``(N,)``, of a process with a kernel, before noise of its own is counted.

    Under a plate both have its batch before these.

    :param X: the rows, ``(N, P)``.
    :param Z: inducing inputs, ``(m, P)``.
    :param L: Cholesky factor of the process's covariance at Z, ``(m, m)``.
    """
    cross = for_each_draw(kernel, lambda: kernel(X, Z))
    variance = for_each_draw(kernel, lambda: kernel(X, diag=True))
    return _whiten(cross, variance, L)


def _whiten(cross: Tensor, variance: Tensor, L: Tensor) -> tuple[Tensor, Tensor]:
    a = torch.linalg.solve_triangular(L.mT, cross, upper=True, left=False)
    return a, (variance - a.square().sum(-1)).clamp(min=0.0)


def with_noise_at_rows(
    kernel: Kernel, X: Tensor, Z: Tensor, L: Tensor, noise: Tensor, shared: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """As :func:`at_rows`, for a process that has noise of its own at every row and every inducing input.

    :param L: Cholesky factor of the covariance at Z, noise included.
    :param noise: its variance.
    :param shared: rows and the inducing inputs that share their noise, as :func:`shared_rows` finds them.
    """
    cross = for_each_draw(kernel, lambda: kernel(X, Z))
    variance = for_each_draw(kernel, lambda: kernel(X, diag=True)) + noise.unsqueeze(-1)
    rows, places = shared
    if len(rows):
        cross = cross.expand(*noise.shape, *cross.shape[-2:]) if cross.dim() == 2 else cross
        of_shared = torch.zeros(cross.shape[-2:], dtype=cross.dtype, device=cross.device)
        of_shared[rows, places] = 1.0
        cross = cross + noise[..., None, None] * of_shared
    return _whiten(cross, variance, L)


def shared_rows(X: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that are inducing inputs, and which, ``(c,)`` each; of equal rows the first.

    >>> rows, places = shared_rows(torch.tensor([[1.0], [2.0], [2.0]]), torch.tensor([[5.0], [2.0]]))
    >>> rows.tolist(), places.tolist()
    ([1], [1])
    """
    where: dict[bytes, list[int]] = {}
    wanted = {row.tobytes() for row in _rows_of(Z)}
    for number, row in enumerate(_rows_of(X)):
        if (key := row.tobytes()) in wanted:
            where.setdefault(key, []).append(number)
    found = [(where[key].pop(0), place) for place, row in enumerate(_rows_of(Z)) if where.get(key := row.tobytes())]
    pairs = torch.tensor(found, dtype=torch.long, device=X.device).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _rows_of(inputs: Tensor) -> np.ndarray:
    return np.ascontiguousarray(inputs.detach().cpu().numpy())


def choose_inducing(X: Tensor, inducing: int | Tensor, seed: int = 0) -> Tensor:
    """Inducing inputs ``(m, P)``: as they are given, or so many of the rows, well spread by k-means++.

    k-means++ (Arthur and Vassilvitskii 2007) takes rows one by one, those that are far from all that it has with a
    higher probability. Pivoted Cholesky factorisation, which takes the row that the kernel leaves most of, was tried
    as well (docs/many-rows.md).

    :param X: inputs, ``(N, P)``.
    :param inducing: how many, or the inputs themselves.
    :param seed: seed of the choice.

    >>> choose_inducing(torch.linspace(0, 1, 50)[:, None], 8).shape
    torch.Size([8, 1])
    """
    if isinstance(inducing, Tensor):
        return check_inputs(inducing, n_columns=X.shape[1], name="inducing").to(X.device)
    if isinstance(inducing, bool) or not isinstance(inducing, (int, np.integer)) or inducing < 1:
        raise ValueError(f"inducing must be a number of inputs of at least 1, or the inputs (m, P); got {inducing!r}")
    return X[spread_rows(X, int(inducing), seed)]


def spread_rows(X: Tensor, n: int, seed: int = 0) -> Tensor:
    """The numbers of ``n`` rows, or all of them if there are no more, well spread by k-means++, ascending, ``(n,)``."""
    from sklearn.cluster import kmeans_plusplus  # which users of the exact model do not wait for

    values = X.detach().cpu().numpy()
    distinct = np.unique(values, axis=0, return_index=True)[1]
    if len(distinct) <= n:
        return torch.from_numpy(np.sort(distinct)).to(X.device)
    if len(distinct) > MOST_LOOKED_AT:
        distinct = np.random.default_rng(seed).choice(distinct, MOST_LOOKED_AT, replace=False)
    _, places = kmeans_plusplus(values[distinct], n, random_state=seed)
    return torch.from_numpy(np.sort(distinct[np.unique(places)])).to(X.device)
