"""Exact posterior draws of the weights that a collapsed network integrates out, and how they correlate outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import as_correlation, covariance_root
from pyro_gprn.collapsed.draws import Posterior, PosteriorDraws
from pyro_gprn.collapsed.likelihood import outputs_given
from pyro_gprn.collapsed.low_rank import OutputsGivenInducing
from pyro_gprn.collapsed.low_rank_draws import low_rank_covariances
from pyro_gprn.collapsed.low_rank_prediction import low_rank_statistics
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.network.checks import check_inputs
from pyro_gprn.outputs.selection import Outputs, OutputSelection
from pyro_gprn.prediction import output_correlation
from pyro_gprn.prediction.conditional import Conditional
from pyro_gprn.pyro_state import white_noise


@torch.no_grad()
def sample_weights(
    model: CollapsedGPRN,
    posterior: Posterior,
    X_new: Tensor,
    n_draws: int,
    outputs: Outputs = None,
    Y: Any = None,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draws of the weights W at new inputs, given the data, ``(n_draws, N*, K, …)``: exact given F, which is drawn.

    :param model: the model.
    :param posterior: as for :func:`~pyro_gprn.posterior_predictive`. (Of draws all are used.)
    :param X_new: ``(N*, P)``; the training inputs for the weights there.
    :param n_draws: how many draws, each with its own F.
    :param outputs: which outputs' weights, as for :func:`~pyro_gprn.posterior_predictive`.
    :param Y: the data, if the model has not seen them.
    :param generator: of random numbers; None is torch's global state.

    >>> from pyro_gprn import CollapsedGuide
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=1000, n_latents=2)
    >>> guide = CollapsedGuide(model)
    >>> sample_weights(model, guide, model.X[:3], 5, outputs=[0, 7], Y=torch.ones(8, 1000)).shape
    torch.Size([5, 3, 2, 2])
    """
    if model.has_inducing:
        return _at_inducing(model, posterior, X_new, n_draws, outputs, Y, generator)
    # Matheron's rule: for prior draws w⁰ at X and X*, and y⁰ = Σ_k f_k ∘ w⁰_k + noise made of them,
    #   w*_k = w⁰*_k + κ_w(X*, X) diag(f_k) C_F⁻¹ (y − y⁰)   is a draw of w*_k given y.
    X_new = check_inputs(X_new, n_columns=model.X.shape[1], name="X_new").to(model.X.device)
    chosen = OutputSelection(outputs, model.output_shape)
    known = model.statistics(Y)
    positions = chosen.positions(slice(None))
    y = known.source.read(positions).to(torch.float64)
    groups = known.patterns_at(positions)
    own = "d" if model.own_kernels else ""  # a dimension of outputs, in which kernels differ then

    def draw(V: Tensor) -> Tensor:
        Lf, Kw, noise = model.covariances()
        everywhere = model.kernel_w(torch.cat([model.X, X_new]))
        everywhere = everywhere[groups] if own else everywhere
        return torch.stack([draw_given(F, Kw, noise, everywhere, covariance_root(everywhere)) for F in Lf @ V])

    def draw_given(F: Tensor, Kw: Tensor, noise: Tensor, everywhere: Tensor, root: Tensor) -> Tensor:
        N, K = F.shape
        white = white_noise(root.shape[-1], K, chosen.size, like=root, generator=generator, dtype=torch.float32)
        prior = torch.einsum(f"{own}ij,jkd->ikd", root, white)
        deviation = noise.sqrt()[groups] if own else noise.sqrt()
        noise_draw = deviation * white_noise(*y.shape, like=y, generator=generator)
        imagined = (F.unsqueeze(-1) * prior[:N]).sum(1) + noise_draw
        surprise = (y - imagined).nan_to_num(nan=0.0)  # nothing is learnt where nothing was observed
        solved = outputs_given(known, model.output_covariance(F, Kw, noise)).solve(surprise, positions)
        return prior[N:] + torch.einsum(f"{own}in,nk,nd->ikd", everywhere[..., N:, :N], F, solved)

    draws = PosteriorDraws.of(model, posterior, n_draws, generator=generator)
    return chosen.reshape(torch.cat(draws.each(draw)))


def _at_inducing(
    model: CollapsedGPRN,
    posterior: Posterior,
    X_new: Tensor,
    n_draws: int,
    outputs: Outputs,
    Y: Any,
    generator: torch.Generator | None,
) -> Tensor:
    """Draws of the weights by those at inducing inputs: ``w* = a* ω``, and what ω leaves of them."""
    X_new = check_inputs(X_new, n_columns=model.X.shape[1], name="X_new").to(model.X.device)
    chosen, known = OutputSelection(outputs, model.output_shape), low_rank_statistics(model, Y)
    positions = chosen.positions(slice(None))
    values, groups = known.values_at(positions), known.patterns_at(positions)

    def draw(V: Tensor) -> Tensor:
        covariances = low_rank_covariances(model)
        new = Conditional.of(model.kernel_w, model.function_inputs, X_new, model.weights_factor())
        root = covariance_root(new.residual)
        return torch.stack([draw_given(OutputsGivenInducing(v, covariances, known), new, root) for v in V])

    def draw_given(given: OutputsGivenInducing, new: Conditional, root: Tensor) -> Tensor:
        mean, factor = given.weights_of(values, positions), given.weights().factor
        white = white_noise(*mean.shape, like=mean, generator=generator)
        for group in groups.unique().tolist():  # of covariance B⁻¹
            some = groups == group
            white[:, some] = torch.linalg.solve_triangular(factor[group].mT, white[:, some], upper=True)
        omega = (mean + white).unflatten(0, (model.n_latents, -1))  # (K, m, b)
        own = white_noise(len(X_new), model.n_latents, chosen.size, like=mean, generator=generator)
        return torch.einsum("in,kib->nkb", new.whitened, omega) + torch.einsum("ij,jkb->ikb", root, own)

    draws = PosteriorDraws.of(model, posterior, n_draws, generator=generator)
    return chosen.reshape(torch.cat(draws.each(draw)))


@output_correlation.register(CollapsedGPRN)
def _(
    model: CollapsedGPRN,
    posterior: Posterior,
    X_new: Tensor,
    outputs: Outputs = None,
    Y: Any = None,
    *,
    n_draws: int = 64,
    generator: torch.Generator | None = None,
) -> Tensor:
    W = sample_weights(model, posterior, X_new, n_draws, outputs, Y, generator=generator)
    W = W.reshape(*W.shape[:3], -1)
    return as_correlation(torch.einsum("snkd,snke->nde", W, W))
