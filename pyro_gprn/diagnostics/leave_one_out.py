"""Densities of posterior draws of a collapsed network, and predictions of each row from all other rows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_gprn.collapsed.draws import Posterior, PosteriorDraws
from pyro_gprn.collapsed.inducing import LowRankCovariances
from pyro_gprn.collapsed.likelihood import outputs_given, times_kernel
from pyro_gprn.collapsed.low_rank import OutputsGivenInducing
from pyro_gprn.collapsed.low_rank_prediction import low_rank_statistics
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.prediction.scales import OutputScales, StudentMixture
from pyro_gprn.pyro_state import white_noise


class DescribedDraws(NamedTuple):
    """``s`` draws from a posterior with their densities, in the model's units."""

    draws: PosteriorDraws
    hyperparameters: dict[str, Tensor]  #: all of them, by name, (s, …)
    F: Tensor  #: functions at the training inputs, (s, N, K)
    log_joint: Tensor  #: ρ log p(Y|F) + log p(V), (s,), with ρ the power of the likelihood
    by_row: Tensor  #: ρ log p(y_n | the other rows, F), (s, N)


@torch.no_grad()
def describe_draws(
    model: CollapsedGPRN,
    posterior: Posterior,
    n_draws: int,
    Y: Any = None,
    *,
    generator: torch.Generator | None = None,
) -> DescribedDraws:
    """Draws from a posterior, with their densities.

    :param model: the model.
    :param posterior: its guide, or a mapping with draws of its sites as MCMC gives them.
    :param n_draws: how many draws from a guide; of a mapping, all are taken.
    :param Y: the training outputs, ``(N, d_1, …, d_M)``, if the model has not seen them.
    :param generator: source of random numbers; None uses torch's global state.

    >>> from pyro_gprn import CollapsedGuide
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> described = describe_draws(model, CollapsedGuide(model), 7, torch.ones(5, 3))
    >>> described.F.shape, described.by_row.shape
    (torch.Size([7, 5, 2]), torch.Size([7, 5]))
    """
    known = model.statistics(Y)
    draws = PosteriorDraws.of(model, posterior, n_draws, generator=generator)

    def describe(V: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        covariances = model.covariances()
        F = covariances[0] @ V
        given: list[Any]
        if isinstance(covariances, LowRankCovariances):
            given = [OutputsGivenInducing(v, covariances, low_rank_statistics(model)) for v in V]
        else:  # one N×N at a time
            _, Kw, noise = covariances
            given = [outputs_given(known, model.output_covariance(each, Kw, noise)) for each in F]
        density = torch.stack([each.log_density() for each in given])
        by_row = torch.stack([each.log_density_by_row() for each in given])
        log_prior = -0.5 * (V.square().sum((-2, -1)) + V[0].numel() * math.log(2 * math.pi))
        power = model.likelihood_power
        values = {name: value.expand(len(V), *value.shape) for name, value in model.hyperparameters().items()}
        return values, F, power * density + log_prior, power * by_row

    parts = draws.each(describe)
    hyperparameters = {name: torch.cat([part[0][name] for part in parts]) for name in parts[0][0]}
    F, log_joint, by_row = (torch.cat([part[place] for part in parts]) for place in (1, 2, 3))  # type: ignore[misc]
    return DescribedDraws(draws, hyperparameters, F, log_joint, by_row)


class LeftOut(NamedTuple):
    """Predictions of each row from all other rows, for ``b`` outputs: one Gaussian for each of ``s`` draws."""

    mean: Tensor  #: (s, N, b)
    variance: Tensor  #: with noise, of outputs whose scale is 1, (s, N, b)
    residual_squares: Tensor  #: what each row adds to y_dᵀC⁻¹y_d when the others are known, (s, N, b); 0 where missing

    def distribution(self, scales: OutputScales | None = None) -> StudentMixture:
        """The mixture over draws: of Gaussians, or of Student-t where each output has a scale.

        :param scales: of these outputs, ``(b,)``. Each row's own share is taken out of them.
        """
        if scales is None:
            return StudentMixture(self.mean, self.variance.sqrt(), self.mean.new_tensor(math.inf))
        means = scales.spread_out(self.mean, self.mean.mean(0))
        mixture = StudentMixture(means, (self.variance * self._squares(scales)).sqrt(), scales.degrees - 1.0)
        stretched = scales.squares_at_places(means.mean(0))
        return mixture if stretched is None else mixture.stretched(stretched.sqrt())

    def _squares(self, scales: OutputScales) -> Tensor:
        """``ŝ_d²`` of each row without what the row itself says of it, ``(N, b)``."""
        # ν' ŝ² = ν + q with q = Σ_n z_n²/P_nn + …; the quadratic form of the other rows is q − z_n²/P_nn, at least 0.
        if math.isinf(scales.prior_degrees):
            return torch.ones_like(self.mean[0]) * scales.squares
        everything = scales.degrees * scales.squares / scales.factors**2 - self.residual_squares.mean(0)
        return scales.factors**2 * everything.clamp(min=scales.prior_degrees) / (scales.degrees - 1.0)


@torch.no_grad()
def predict_left_out(
    draws: PosteriorDraws, positions: Tensor, Y: Any = None, *, generator: torch.Generator | None = None
) -> LeftOut:
    """Predicts each row's outputs from all other rows.

    The functions of the row are drawn anew given those of the other rows, and its outputs are left out. It still has
    an influence through the other rows' functions, whose posterior is that given all rows.

    :param draws: draws from the posterior.
    :param positions: positions of the outputs among the flattened ones, ``(b,)``.
    :param Y: the training outputs, ``(N, d_1, …, d_M)``, if the model has not seen them.
    :param generator: source of random numbers; None uses torch's global state.

    >>> from pyro_gprn import CollapsedGuide
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> draws = PosteriorDraws.of(model, CollapsedGuide(model), 7)
    >>> predict_left_out(draws, torch.tensor([0, 2]), torch.ones(5, 3)).mean.shape
    torch.Size([7, 5, 2])
    """
    # Row n of F given the others: f_n = F_n − [K⁻¹F]_n / [K⁻¹]_nn + noise of variance 1/[K⁻¹]_nn, with K = K_f̂. With
    # k_n = κ_w(x_n, X) ∘ (f_n Fᵀ) and coefficients c_n of the other rows, the outputs of the row have
    #   mean c_n y     and     variance κ_w(x_n,x_n)|f_n|² + σ_y² − k_n c_nᵀ.
    model = draws.model
    if model.has_inducing:
        raise ValueError(
            "rows of a network with inducing inputs are not left out one by one, with the functions as they are: hold"
            " out some rows and fit the others, or take inducing=None for fewer rows"
        )
    known = model.statistics(Y)
    values = known.values_at(positions)

    def predict(V: Tensor) -> LeftOut:
        Lf, Kw, noise = model.covariances()
        F = Lf @ V
        precision_f = torch.cholesky_inverse(Lf)
        spread = precision_f.diagonal().rsqrt().unsqueeze(-1)
        fresh = spread * white_noise(*F.shape, like=F, generator=generator)
        anew = F - (precision_f @ F) * spread.square() + fresh
        given = outputs_given(known, model.output_covariance(F, Kw, noise))
        mean, explained = given.predict_left_out(times_kernel(Kw, anew @ F.mT), positions)
        prior = Kw.diagonal(dim1=-2, dim2=-1) * anew.square().sum(-1).unsqueeze(1)  # (s, 1 or g, N)
        of_noise = noise.reshape(1, -1, 1)
        if known.is_by_output:
            prior, of_noise = prior[:, positions], of_noise[:, positions]
        variance = (prior.mT - explained).clamp(min=0.0) + of_noise.mT  # (s, N, b)
        return LeftOut(mean, variance, given.solve(values, positions).square() / given.precision_at(positions))

    parts = draws.each(predict)
    return LeftOut(*(torch.cat(values) for values in zip(*parts, strict=True)))
