"""The paper's evidence lower bound in closed form, as a Pyro ELBO.

L = E_q[log p(Y|W,F)] − KL(q(F)‖p(F)) − KL(q(W)‖p(W))                                  (paper, equation 8)

or, where q is a mixture, a bound of this kind: see :func:`closed_form_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.torch_distribution import MaskedDistribution
from pyro.infer import ELBO
from pyro.poutine import Trace
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from pyro_gprn.factorised.likelihood import NetworkNormal
from pyro_gprn.factorised.posterior import Undrawn, as_mixture, output_moments, row_second_moment

#: Sites whose terms are in closed form, and which are therefore never drawn.
CLOSED_FORM_SITES = ("f", "w", "y")

_NEEDS = (
    "ClosedFormELBO draws neither 'f' nor 'w', so a model may use them only in y ~ NetworkNormal(f, w, noise)."
    " For another likelihood use pyro.infer.TraceMeanField_ELBO."
)


class ClosedFormELBO(ELBO):
    """The exact bound of a :class:`~pyro_gprn.GPRN` and its guide: neither F nor W is ever drawn.

    Use it as any other Pyro ELBO, ``SVI(model, guide, optim, ClosedFormELBO())``, or as a torch module,
    ``ClosedFormELBO()(model, guide)``, whose call returns the loss for a torch optimiser. The arguments are
    those of the model: ``(Y)`` or ``(Y, mask)``.

    Hyperparameters with priors are the exception: they are drawn from their guide, and the bound includes their
    log p − log q at the draw (for a point estimate that is exact).

    :param num_particles: how many draws of such hyperparameters to average over.

    >>> from pyro_gprn import GPRN, KroneckerGuide
    >>> model = GPRN(torch.linspace(0, 1, 8)[:, None], output_shape=1000, n_latents=2)
    >>> loss = ClosedFormELBO()(model, KroneckerGuide(model))
    >>> Y = torch.randn(8, 1000)
    >>> torch.equal(loss(Y), loss(Y))
    True
    """

    def __init__(self, num_particles: int = 1) -> None:
        super().__init__(num_particles=num_particles)

    def differentiable_loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> Tensor:
        """The negative bound as a tensor, for autograd."""
        traces = self._get_traces(model, guide, args, kwargs)
        return -torch.stack([_bound(*pair) for pair in traces]).mean()

    def loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """The negative bound as a number."""
        with torch.no_grad():
            return self.differentiable_loss(model, guide, *args, **kwargs).item()

    def loss_and_grads(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """The negative bound as a number; adds its gradients to those of the parameters."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward()
        return loss.item()

    def _get_trace(self, model: Callable, guide: Callable, args: Any, kwargs: Any) -> tuple[Trace, Trace]:
        guide_trace = poutine.trace(Undrawn(CLOSED_FORM_SITES)(guide)).get_trace(*args, **kwargs)
        try:
            model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args, **kwargs)
        except ValueError as error:
            if "found invalid values" in str(error):  # torch's word for NaN among a distribution's parameters
                raise ValueError(_NEEDS) from error
            raise
        return prune_subsample_sites(model_trace), prune_subsample_sites(guide_trace)


def _bound(model_trace: Trace, guide_trace: Trace) -> Tensor:
    for name in CLOSED_FORM_SITES:
        if name not in model_trace or (name != "y" and name not in guide_trace):
            raise ValueError(
                "ClosedFormELBO needs a model with sites 'f', 'w' and 'y', and a guide of 'f' and 'w';"
                f" {name!r} is missing"
            )
    likelihood, Y, mask = _observed(model_trace.nodes["y"])
    posterior, prior = ([trace.nodes[name]["fn"] for name in ("f", "w")] for trace in (guide_trace, model_trace))
    bound = closed_form_bound(posterior, prior, Y, likelihood.scale, mask)
    return bound + _log_prob_of_others(model_trace) - _log_prob_of_others(guide_trace)


def _observed(site: dict) -> tuple[NetworkNormal, Tensor, Tensor | None]:
    """Likelihood, data and mask of the site "y"."""
    if not site["is_observed"]:
        raise ValueError("ClosedFormELBO needs the data: pass Y, as in svi.step(Y)")
    likelihood, mask = site["fn"], None
    if isinstance(likelihood, MaskedDistribution):
        likelihood, mask = likelihood.base_dist, likelihood._mask
    if not isinstance(likelihood, NetworkNormal):
        raise ValueError(f"{_NEEDS} The site 'y' is {type(likelihood).__name__}.")
    return likelihood, site["value"], mask


def _log_prob_of_others(trace: Trace) -> Tensor | float:
    """Σ log p over the sites that were drawn: hyperparameters with priors."""
    others = [site for name, site in trace.nodes.items() if site["type"] == "sample" and name not in CLOSED_FORM_SITES]
    return sum(site["fn"].log_prob(site["value"]).sum() for site in others)


def closed_form_bound(
    posterior: Sequence[Distribution],
    prior: Sequence[Distribution],
    Y: Tensor,
    scale: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """The bound without the terms of hyperparameters, a scalar.

    Where the posterior is a mixture, the expected log joint is the mean of its components', and the entropy is replaced
    by a lower bound.

    :param posterior: what "f" and "w" are drawn from, as :func:`~pyro_gprn.factorised.posterior.as_mixture` takes it.
    :param prior: of F and of W.
    :param Y: outputs; with ``scale`` and ``mask``, as for :func:`expected_log_likelihood`.

    >>> from pyro_gprn import GPRN, KroneckerGuide
    >>> model, Y = GPRN(torch.linspace(0, 1, 8)[:, None], output_shape=5, n_latents=2), torch.ones(8, 5)
    >>> guide = KroneckerGuide(model)
    >>> bound = closed_form_bound(guide.posterior(Y), model.prior(), Y, model.noise_y)
    >>> torch.allclose(-bound, ClosedFormELBO()(model, guide)(Y))
    True
    """
    mixture = as_mixture(*posterior)
    bounds = []
    for component in mixture.components:
        bound = expected_log_likelihood(*component, Y, scale, mask)
        for q, p in zip(component, prior, strict=True):
            bound = bound - kl_divergence(q, p)
        bounds.append(bound)
    return torch.stack(bounds).mean() + mixture.entropy


def expected_log_likelihood(
    q_f: Distribution, q_w: Distribution, Y: Tensor, scale: Tensor, mask: Tensor | None = None
) -> Tensor:
    """``E_q[log p(Y|W,F)]``, a scalar (paper, below equation 8, corrected)::

        −½ Σ_nd log 2πσ_d² − ½ Σ_n [ y_nᵀy_n − 2 y_nᵀE[W_n]m_n + tr(E[W_nᵀW_n] E[h_n h_nᵀ]) ] / σ²

    where sums over outputs multiply each output by ``1/σ_d²``, and by zero where it is missing.

    :param q_f: posterior of F over ``(N, K)``: matrix-normal, or independent normals.
    :param q_w: posterior of W over ``(N, K, d_1, …, d_M)``: tensor-normal, with any mean, or independent normals.
    :param Y: ``(N, d_1, …, d_M)``.
    :param scale: ``σ_y``, ``()`` or ``(d_1, …, d_M)``.
    :param mask: True where an output was observed, of the shape of Y.

    >>> from pyro_gprn import MatrixNormal, TensorNormal
    >>> q_f = MatrixNormal(torch.ones(1, 1), 1e-6 * torch.ones(1), None)
    >>> q_w = TensorNormal(torch.ones(1, 1, 3), [1e-6 * torch.ones(1), None, None])
    >>> expected_log_likelihood(q_f, q_w, torch.ones(1, 3), torch.tensor(1.0)) / 3  # log Normal(1; 1, 1)
    tensor(-0.9189)
    """
    log_noise = (2 * math.pi * scale.square()).log()
    precision = scale.square().reciprocal()
    if mask is None:
        log_normaliser = Y.numel() * log_noise.mean()
    else:
        log_normaliser = (mask * log_noise).sum()
        precision = mask * precision
    yy, yw, ww = output_moments(q_w, Y, precision)
    squares = yy - 2 * (yw * q_f.mean).sum() + (ww * row_second_moment(q_f)).sum()
    return -0.5 * (log_normaliser + squares)
