"""The posterior of nonparametric variational inference: a mixture of isotropic Gaussians."""

from __future__ import annotations

from typing import Any, Literal

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints
from torch.nn import Parameter

from pyro_gprn.algebra.tensor_normal import MatrixNormal, TensorNormal
from pyro_gprn.factorised.guide import FactorisedGuide
from pyro_gprn.factorised.isotropic_mixture import IsotropicMixture
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.factorised.projected import ProjectedTensorNormal
from pyro_gprn.pyro_state import white_noise

#: How far the components start from each other: a standard deviation of the functions, whitened.
SPREAD = 0.1


class MixtureGuide(FactorisedGuide):
    """Mixture of isotropic Gaussians over all of F and W, as variational posterior of a :class:`~pyro_gprn.GPRN`::

        q(u) = 1/Q Σ_j Normal(u | μ_j, v_j I)          u = (F, W), N·K·(1 + D) numbers

    This is the nonparametric variational inference (NPV) of Gershman, Hoffman and Blei (2012), which Nguyen and Bonilla
    (2013) apply to these networks. It can follow several modes of the posterior. Within a component all numbers are
    independent and have one variance, so that the smoother the kernels, the smaller this must be: about the harmonic
    mean of the kernel matrices' eigenvalues. Its bound therefore prefers kernels rougher than the data would have them.

    The means are held whitened by the prior, and the standard deviations ``√v_j`` in units of the best one under the
    prior alone. The family is the same, but its parameters still fit when the kernels change. The first component
    starts where other guides start, and the others nearby.

    :param model: the model whose posterior it approximates.
    :param mean: ``"projected"`` holds the mean of the weights in each component as a projection ``B_j Y``, Q·K·N²
        numbers; it needs complete outputs with one noise, and no array but Y has an output dimension. ``"full"`` holds
        all of it, Q·N·K·D numbers, as the original does; it takes a mask and a noise for each output.
    :param components: ``Q``.
    :param generator: source of random numbers for the start; None uses torch's global state.

    With ``mean="projected"`` the guide must be called with the data, as :class:`~pyro.infer.SVI` does; a later call
    without data uses the same data again.

    As a Pyro guide it has the sites "f" and "w", and an auxiliary site "component" that says which component both are
    drawn from. The density of "w" is the one given "f", so that a sampled ELBO has the exact entropy of the mixture.
    :class:`~pyro_gprn.ClosedFormELBO` has a lower bound of it.

    >>> from pyro.infer import SVI
    >>> from pyro.optim import Adam
    >>> from pyro_gprn import ClosedFormELBO
    >>> X = torch.linspace(0, 1, 8)[:, None]
    >>> model = GPRN(X, output_shape=(4, 3), n_latents=2)
    >>> guide = MixtureGuide(model, components=3)
    >>> svi = SVI(model, guide, Adam({"lr": 0.01}), ClosedFormELBO())
    >>> Y = torch.sin(3 * X)[:, :, None].expand(8, 4, 3)
    >>> svi.step(Y) > svi.step(Y)
    True
    >>> [len(q.components) for q in guide.posterior()]
    [3, 3]
    """

    def __init__(
        self,
        model: GPRN,
        mean: Literal["projected", "full"] = "projected",
        *,
        components: int = 2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(model, mean)
        if components < 1:
            raise ValueError(f"components must be at least 1; got {components}")
        N, K, X = model.n_rows, model.n_latents, model.X
        starts = torch.stack([model.whitened_start(SPREAD, generator) for _ in range(components)])
        starts[1:, :, 0] += SPREAD * white_noise(components - 1, N, like=starts, generator=generator)
        self.f_loc = Parameter(starts)
        if mean == "projected":
            self.w_projection = Parameter(X.new_zeros(components, K, N, N))
        else:
            self.w_loc = Parameter(X.new_zeros(components, N, K, *model.output_shape))
        self.scale = PyroParam(X.new_ones(components), constraints.positive)

    def posterior(self, Y: Any = None) -> tuple[IsotropicMixture, IsotropicMixture]:
        """The parts of the mixture over F, ``(N, K)``, and over W, ``(N, K, d_1, …, d_M)``.

        Each is the marginal distribution: draws from both need the same component.

        :param Y: as for :meth:`statistics`.
        """
        prior_f, prior_w = self.model.guided(self.model.prior)
        Lf, Lw = prior_f.factors[0].dense(), prior_w.factors[0].dense()
        scales = self.scale * _best_scale(prior_f, prior_w)
        rows = scales.unsqueeze(-1).expand(-1, self.model.n_rows)  # √v_j for each row
        q_f = [MatrixNormal(Lf @ loc, scale, None) for loc, scale in zip(self.f_loc, rows, strict=True)]
        rest = [None] * (1 + len(self.model.output_shape))
        q_w: list[TensorNormal]
        if self.mean == "projected":
            known = self.statistics(Y)
            q_w = [
                ProjectedTensorNormal(Lw @ B, known.source, known.gram, [scale, *rest])
                for B, scale in zip(self.w_projection, rows, strict=True)
            ]
        else:
            locs = (torch.tensordot(Lw, loc, dims=1) for loc in self.w_loc)
            q_w = [TensorNormal(loc, [scale, *rest]) for loc, scale in zip(locs, rows, strict=True)]
        return IsotropicMixture(q_f, scales), IsotropicMixture(q_w, scales)

    def draw(self, q_f: IsotropicMixture, q_w: IsotropicMixture) -> None:
        """Draws "component", and "f" and "w" from this component."""
        # A number of which the whole part counts: unlike an integer it is reparametrised, as some ELBOs demand. Masked,
        # since the densities of "f" and "w" are those of the mixture, whichever component they come from.
        number = dist.Uniform(torch.zeros_like(q_f.scales[0]), float(len(q_f.components))).mask(False)
        component = pyro.sample("component", number, infer={"is_auxiliary": True}).long()
        f = pyro.sample("f", q_f.at(component))
        pyro.sample("w", q_w.at(component, given=(q_f, f)))

    @torch.no_grad()
    def update_mean(self, Y: Any) -> None:
        """Sets the weights' mean in each component to the optimum of its expected log joint, given all else.

        It costs O(Q (NK)³) for each pattern of holes, and needs one noise. A few of these steps save thousands of
        gradient steps. The entropy may fall, by at most log Q as long as the components have one variance.

        :param Y: as for :meth:`statistics`.
        """
        known, q_f, prior_w, noise = self._given_for_mean(Y)
        parameter = self.w_projection if self.mean == "projected" else self.w_loc
        for number, component in enumerate(q_f.components):
            parameter[number] = self._best_mean(known, component, prior_w, noise)


def _best_scale(prior_f: TensorNormal, prior_w: TensorNormal) -> Tensor:
    """The standard deviation with which ``Normal(u | 0, v I)`` is nearest to the prior: ``v = n / tr(Cov(u)⁻¹)``."""
    n = prior_f.event_shape.numel() + prior_w.event_shape.numel()
    trace = sum(prior.event_shape[1:].numel() * prior.factors[0].precision().sum() for prior in (prior_f, prior_w))
    return (n / trace).sqrt()
