"""Draws from the posterior of a collapsed network, and what they say of each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from pyro import poutine
from torch import Tensor

from pyro_gprn.algebra.linalg import safe_cholesky
from pyro_gprn.collapsed.likelihood import density_and_inverse, restrict
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.prediction import draw_sites
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import isolated

#: Endings of what a guide of a hyperparameter is made of.
_OF_GUIDES = ("_map", "_loc", "_scale", "_scale_tril")


class PosteriorDraws(NamedTuple):
    """What ``s`` draws say, on the model's scale."""

    sites: dict[str, Tensor]  #: the draws: "v", (s, N, K), and hyperparameters that have priors
    hyperparameters: dict[str, Tensor]  #: all of them, by name, (s, …)
    F: Tensor  #: functions at the training inputs, (s, N, K)
    log_joint: Tensor  #: ρ log p(Y|F) + log p(V), (s,), with ρ the weight of the likelihood
    by_row: Tensor  #: ρ log p(y_n | the other rows, F), (s, N)


@torch.no_grad()
def describe_draws(
    model: CollapsedGPRN, posterior: Callable | Mapping[str, Tensor], n_draws: int, Y: Tensor | None = None
) -> PosteriorDraws:
    """Draws of a posterior (all of those that a mapping holds), with densities.

    :param model: the model.
    :param posterior: its guide, or draws of its sites as MCMC gives them.
    :param n_draws: how many.
    :param Y: the data, if the model has not seen them.
    """
    known = model.statistics(Y)
    with isolated(), poutine.block():
        sites = dict(posterior) if isinstance(posterior, Mapping) else draw_sites(posterior, known.outputs, n_draws)
        parts = []
        for i in range(len(sites["v"])):
            draw = {name: values[i] for name, values in sites.items()}
            with poutine.condition(data=draw):
                parts.append(model.drawn(lambda v=draw["v"]: _describe(model, v, known)))
    hyperparameters = {name: torch.stack([part[0][name] for part in parts]) for name in parts[0][0]}
    F, log_joint, by_row = (torch.stack([part[place] for part in parts]) for place in (1, 2, 3))
    return PosteriorDraws(sites, hyperparameters, F, log_joint, by_row)


def _describe(
    model: CollapsedGPRN, v: Tensor, known: OutputStatistics
) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    Lf, Kw, noise = model.covariances()
    F = Lf @ v
    density, by_row = log_density_by_row(model.output_covariance(F, Kw, noise), known)
    log_prior = -0.5 * (v.square().sum() + v.numel() * math.log(2 * math.pi))
    weight = model.likelihood_weight
    return hyperparameters_of(model), F, weight * density + log_prior, weight * by_row


def hyperparameters_of(model: CollapsedGPRN) -> dict[str, Tensor]:
    """Their current (or drawn) values, by name."""
    found = {}
    for prefix, module in model.named_modules():
        for name in [*getattr(module, "_pyro_params", {}), *getattr(module, "_pyro_samples", {})]:
            if not name.endswith(_OF_GUIDES):
                found[f"{prefix}.{name}".lstrip(".")] = getattr(module, name).detach()
    return found


def log_density_by_row(covariance: Tensor, known: OutputStatistics) -> tuple[Tensor, Tensor]:
    """``log p(Y)``, a number, and ``log p(y_n | the other rows)`` of each row, ``(N,)``, for one covariance ``C``.

    From the Gram matrices: no row is ever taken out.

    >>> known = OutputStatistics.of(torch.zeros(3, 10, dtype=torch.float64))
    >>> log_density_by_row(torch.eye(3, dtype=torch.float64), known)[1]
    tensor([-9.1894, -9.1894, -9.1894], dtype=torch.float64)
    """
    # The conditional of y_nd given the other rows has variance 1/[C⁻¹]_nn and lies [C⁻¹y_d]_n / [C⁻¹]_nn from y_nd. So
    #   Σ_d log p(y_nd | rest) = ½ D log [C⁻¹]_nn − ½ D log 2π − ½ [C⁻¹ G C⁻¹]_nn / [C⁻¹]_nn
    # over each pattern of holes that has the row.
    density, inverse = density_and_inverse(restrict(covariance, known), known)  # (), (g, N, N)
    precision = inverse.diagonal(dim1=-2, dim2=-1)  # (g, N)
    squares = (inverse @ known.grams @ inverse).diagonal(dim1=-2, dim2=-1)
    by_pattern = 0.5 * (known.counts.unsqueeze(-1) * (precision / (2 * math.pi)).log() - squares / precision)
    return density, torch.where(known.observed, by_pattern, 0.0).sum(0)


class LeftOut(NamedTuple):
    """Each row predicted from the other rows, for ``s`` draws and some outputs: Gaussians."""

    mean: Tensor  #: (s, N, b)
    variance: Tensor  #: with noise, (s, N, b)


@torch.no_grad()
def predict_left_out(model: CollapsedGPRN, V: Tensor, positions: Tensor, Y: Tensor | None = None) -> LeftOut:
    """Each row's outputs from all other rows: its functions drawn anew from theirs, its outputs left out.

    Only the posterior of the other rows' functions has seen the row.

    :param model: at its hyperparameters' current values.
    :param V: draws of the whitened functions, ``(s, N, K)``.
    :param positions: which outputs, among the flattened ones, ``(b,)``.
    :param Y: the data, if the model has not seen them.
    """
    # Row n of F given the others: f_n = F_n − [K⁻¹F]_n / [K⁻¹]_nn + noise of variance 1/[K⁻¹]_nn, with K = K_f̂. With
    # k_n = κ_w(x_n, X) ∘ (f_n Fᵀ), zero at n, and P = C⁻¹, the inverse of C without row n is P − P_:n P_n: / P_nn, so
    #   weights = P k_n − P_:n (P k_n)_n / P_nn     variance = κ_w(x_n,x_n) |f_n|² + σ_y² − k_nᵀ weights.
    known = model.statistics(Y)
    with isolated(), poutine.block():
        Lf, Kw, noise = model.guided(model.covariances)
    F = Lf @ V
    precision_f = torch.cholesky_inverse(Lf)
    spread = precision_f.diagonal().rsqrt().unsqueeze(-1)
    anew = F - (precision_f @ F) * spread.square() + spread * torch.randn_like(F)
    k = _without_diagonal(Kw * (anew @ F.mT)).unsqueeze(1) * known.observed.to(F.dtype).unsqueeze(-2)  # (s, g, N, N)
    C = restrict(model.output_covariance(F, Kw, noise), known)
    P = torch.cholesky_inverse(safe_cholesky(C, name="the covariance of the outputs"))
    weights = k @ P  # a row for each n
    own = weights.diagonal(dim1=-2, dim2=-1) / P.diagonal(dim1=-2, dim2=-1)
    weights = _without_diagonal(weights - own.unsqueeze(-1) * P)
    prior = (Kw.diagonal() * anew.square().sum(-1)).unsqueeze(1)
    variance = (prior - (k * weights).sum(-1)).clamp(min=0.0) + noise
    patterns = known.patterns_at(positions)
    Y_chosen = known.outputs.flatten(1)[:, positions].to(P.dtype).nan_to_num(nan=0.0)
    mean = torch.einsum("sbnm,mb->snb", weights[:, patterns], Y_chosen)
    return LeftOut(mean, variance[:, patterns].mT)


def _without_diagonal(matrix: Tensor) -> Tensor:
    return matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
