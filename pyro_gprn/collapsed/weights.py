"""Exact posterior draws of the weights that a collapsed network integrates out."""

from __future__ import annotations

import torch
from pyro import poutine
from torch import Tensor

from pyro_gprn.algebra.linalg import covariance_root, safe_cholesky
from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.likelihood import restrict
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.network.checks import check_inputs
from pyro_gprn.outputs.selection import Outputs, OutputSelection
from pyro_gprn.pyro_state import AtCentre, isolated


@torch.no_grad()
def sample_weights(
    model: CollapsedGPRN,
    guide: CollapsedGuide,
    X_new: Tensor,
    n_draws: int,
    outputs: Outputs = None,
    Y: Tensor | None = None,
) -> Tensor:
    """Draws of the weights W at new inputs, given the data, ``(n_draws, N*, K, …)``: exact given F, which is drawn.

    :param model: the model.
    :param guide: its posterior, trained.
    :param X_new: ``(N*, P)``; the training inputs for the weights there.
    :param n_draws: how many draws, each with its own F.
    :param outputs: which outputs' weights, as for :func:`~pyro_gprn.posterior_predictive`.
    :param Y: the data, if the model has not seen them.

    >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=1000, n_latents=2)
    >>> guide = CollapsedGuide(model)
    >>> sample_weights(model, guide, model.X[:3], 5, outputs=[0, 7], Y=torch.ones(8, 1000)).shape
    torch.Size([5, 3, 2, 2])
    """
    # Matheron's rule: for prior draws w⁰ at X and X*, and y⁰ = Σ_k f_k ∘ w⁰_k + noise made of them,
    #   w*_k = w⁰*_k + κ_w(X*, X) diag(f_k) C_F⁻¹ (y − y⁰)   is a draw of w*_k given y.
    X_new = check_inputs(X_new, n_columns=model.X.shape[1], name="X_new").to(model.X.device)
    chosen = OutputSelection(outputs, model.output_shape)
    known = model.statistics(Y)
    with isolated(), poutine.block(), AtCentre():
        (Lf, Kw, noise), everywhere = model.guided(
            lambda: (model.covariances(), model.kernel_w(torch.cat([model.X, X_new])))
        )
    N, K = model.n_rows, model.n_latents
    positions = chosen.positions(slice(None))
    y, patterns = known.outputs.flatten(1)[:, positions].to(Lf.dtype), known.patterns_at(positions)
    root = covariance_root(everywhere)
    draws = []
    for v in guide.posterior().sample((n_draws,)):
        F = Lf @ v
        prior = torch.einsum("ij,jkd->ikd", root, torch.randn(len(root), K, chosen.size).to(root))
        imagined = (F.unsqueeze(-1) * prior[:N]).sum(1) + noise.sqrt() * torch.randn_like(y)
        surprise = (y - imagined).nan_to_num(nan=0.0)  # nothing is learnt where nothing was observed
        factors = safe_cholesky(restrict(model.output_covariance(F, Kw, noise), known), name="the covariance")
        for pattern in patterns.unique().tolist():
            some = patterns == pattern
            surprise[:, some] = torch.cholesky_solve(surprise[:, some], factors[pattern])
        correction = torch.einsum("in,nk,nd->ikd", everywhere[N:, :N], F, surprise)
        draws.append(prior[N:] + correction)
    return chosen.reshape(torch.stack(draws))


def output_correlation(
    model: CollapsedGPRN,
    guide: CollapsedGuide,
    X_new: Tensor,
    outputs: Outputs = None,
    Y: Tensor | None = None,
    *,
    n_draws: int = 64,
) -> Tensor:
    """The correlation between outputs at new inputs, ``(N*, b, b)`` over the ``b`` chosen outputs, flattened.

    Of the signal ``W(x) f(x)`` for f from its prior: ``E[W(x) W(x)ᵀ]`` over draws of the weights, scaled to a unit
    diagonal. It changes with the input, and no rotation of the latent functions changes it.

    The parameters are those of :func:`sample_weights`.

    >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=1000, n_latents=2)
    >>> correlation = output_correlation(model, CollapsedGuide(model), model.X[:3], [0, 7], Y=torch.randn(8, 1000))
    >>> correlation.shape, correlation[0].diagonal()
    (torch.Size([3, 2, 2]), tensor([1., 1.], dtype=torch.float64))
    """
    W = sample_weights(model, guide, X_new, n_draws, outputs, Y).flatten(3)
    covariance = torch.einsum("snkd,snke->nde", W, W)
    scale = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=torch.finfo(W.dtype).tiny).sqrt()
    return covariance / (scale.unsqueeze(-1) * scale.unsqueeze(-2))
