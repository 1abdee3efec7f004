"""Predictions of every training row from other rows: by folds that are refitted, or at no cost from the fit itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import KFold
from torch import Tensor

from pyro_gprn.algebra.linalg import quiet_jitter
from pyro_gprn.collapsed.draws import PosteriorDraws
from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.output_scales import learn_scale_rule
from pyro_gprn.collapsed.trainee import CollapsedTrainee
from pyro_gprn.coregionalised import CoregionalisedGuide
from pyro_gprn.diagnostics.leave_one_out import predict_left_out
from pyro_gprn.estimator.inference import inference_of
from pyro_gprn.network.base import Network
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.prediction import PosteriorPredictive, posterior_predictive
from pyro_gprn.prediction.scales import Scales
from pyro_gprn.pyro_state import new_seed
from pyro_gprn.training.interruption import Interruption, noticed_interrupts
from pyro_gprn.training.loop import TrainingRun

#: Folds, the steps in which the functions of each are learned anew, and their learning rate.
N_FOLDS, STEPS, RATE = 3, 60, 0.04
#: With fewer rows than this no fold is refitted.
LEAST_ROWS = 3 * N_FOLDS
#: Components of each prediction.
N_DRAWS = 64


class RowPredictions(NamedTuple):
    """Predictions of ``b`` outputs in all training rows, each from other rows, in the model's units."""

    values: Tensor  #: what was observed, (N, b), NaN where missing
    mean: Tensor  #: what is predicted, (N, b)
    pit: Tensor  #: probability integral transforms of the values, (N, b), NaN where missing
    log_density: Tensor  #: of the values, (N, b), NaN where missing
    is_refitted: bool  #: True if the functions were learned anew, without the rows that are predicted


def predict_by_folds(
    model: CollapsedGPRN,
    guide: CollapsedGuide,
    known: OutputStatistics,
    positions: Tensor,
    *,
    scales: Scales | None,
    generator: torch.Generator,
) -> RowPredictions:
    """Predicts the rows of each of three folds from the rows of the other two.

    For each fold the means of the functions are learned anew without its rows, in a few dozen steps from where they
    are. Hyperparameters and the spread of the posterior stay as the fit left them: it is the fit that is judged.

    :param model: the model, at the hyperparameters of the fit.
    :param guide: its posterior. Neither is changed.
    :param known: statistics of the training outputs.
    :param positions: positions of the outputs among the flattened ones, ``(b,)``.
    :param scales: of all outputs, if each has its own: then they are learned anew without the rows of the fold, and
        widened as these were.
    :param generator: source of random numbers.

    >>> from pyro_gprn.pyro_state import new_generator
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 12)[:, None], output_shape=3, n_latents=2)
    >>> known = model.statistics(torch.sin(5 * model.X + torch.arange(3)))
    >>> settings = {"scales": None, "generator": new_generator(0)}
    >>> predict_by_folds(model, CollapsedGuide(model), known, torch.arange(3), **settings).pit.shape
    torch.Size([12, 3])
    """

    def predict(kept: Tensor, X_new: Tensor, interruption: Interruption) -> PosteriorPredictive:
        part, q = at_rows(model, guide, kept)
        seen = part.statistics(known.at_rows(kept))
        TrainingRun(_Functions(part, seen, RATE, generator, guide=q), STEPS).train(interruption, progress=False)
        anew = None
        if scales is not None:
            anew = learn_scale_rule(part, q, seen, widening=scales.widening, generator=generator)
        settings = {"n_draws": N_DRAWS, "output_scales": anew, "generator": generator}
        return posterior_predictive(part, q, X_new, seen, **settings)

    return _predict_folds(model, known, positions, predict)


def predict_by_refits(
    model: Network,
    guide: Any,
    known: OutputStatistics,
    positions: Tensor,
    *,
    steps: int,
    generator: torch.Generator,
    scales: Scales | None = None,
) -> RowPredictions:
    """As :func:`predict_by_folds`, for a network that has its weights.

    For each fold a new posterior is trained without its rows. Hyperparameters, and the means of the functions or
    weights, begin where the fit left them.

    :param steps: how many steps each of these takes.
    :param scales: of all outputs, if the fit has such for this posterior.

    >>> from pyro_gprn import GPRN, KroneckerGuide
    >>> from pyro_gprn.pyro_state import new_generator
    >>> model = GPRN(torch.linspace(0, 1, 12)[:, None], output_shape=3, n_latents=2)
    >>> known = OutputStatistics.of(torch.sin(5 * model.X + torch.arange(3)))
    >>> settings = {"steps": 5, "generator": new_generator(0)}
    >>> predict_by_refits(model, KroneckerGuide(model), known, torch.arange(3), **settings).pit.shape
    torch.Size([12, 3])
    """
    inference = inference_of(guide)

    settings = {} if scales is None else {"output_scales": scales}

    def begin(part: Any, kept: Tensor) -> Any:
        if isinstance(guide, CoregionalisedGuide):
            return CoregionalisedGuide(part, init_loc=guide.w_loc.detach().clone())
        q = type(guide)(part, mean=guide.mean, generator=generator)
        with torch.no_grad():
            q.f_loc.copy_(_to_rows(model, part, kept) @ guide.f_loc)
        return q

    def predict(kept: Tensor, X_new: Tensor, interruption: Interruption) -> PosteriorPredictive:
        part, seen = copy.deepcopy(model), known.at_rows(kept)
        part.X = model.X[kept]
        fit = inference.train(part, seen, steps, guide=begin(part, kept), seed=new_seed(generator), progress=False)
        return posterior_predictive(part, fit.guide, X_new, seen, generator=generator, **settings)

    return _predict_folds(model, known, positions, predict)


def _predict_folds(
    model: Network,
    known: OutputStatistics,
    positions: Tensor,
    predict: Callable[[Tensor, Tensor, Interruption], PosteriorPredictive],
) -> RowPredictions:
    """Predicts each fold by a function of the rows that are kept and the inputs of the others."""
    values = known.source.read(positions).to(model.X)
    mean, pit, log_density = (torch.full_like(values, math.nan) for _ in range(3))
    with noticed_interrupts() as interruption, quiet_jitter():
        for fold in KFold(N_FOLDS, shuffle=True, random_state=0).split(np.empty(model.n_rows)):
            kept, rows = (torch.from_numpy(part).to(positions) for part in fold)
            predictive = predict(kept, model.X[rows], interruption)
            chosen = positions.tolist()
            mean[rows] = predictive.mean(chosen)
            pit[rows] = predictive.cdf(values[rows], chosen)
            log_density[rows] = predictive.log_density(values[rows], chosen)
    return RowPredictions(values, mean, pit, log_density, True)


def predict_without_refit(
    draws: PosteriorDraws,
    known: OutputStatistics,
    positions: Tensor,
    scales: Scales | None,
    *,
    generator: torch.Generator,
) -> RowPredictions:
    """Predicts each row from all others, whose functions stay as they are. They have seen the row: this is optimistic.

    :param draws: draws from the posterior.
    :param known: statistics of the training outputs.
    :param positions: positions of the outputs among the flattened ones, ``(b,)``.
    :param scales: of all outputs, if each has its own.
    :param generator: source of random numbers.
    """
    left_out = predict_left_out(draws.first(N_DRAWS), positions, known, generator=generator)
    values = known.source.read(positions).to(left_out.mean)
    mixture = left_out.distribution(None if scales is None else scales.at(positions))
    by_component = mixture.log_density_by_component(values)
    log_density = by_component.logsumexp(0) - math.log(len(by_component))
    return RowPredictions(values, left_out.mean.mean(0), mixture.cdf(values), log_density, False)


@torch.no_grad()
def at_rows(model: CollapsedGPRN, guide: CollapsedGuide, rows: Tensor) -> tuple[CollapsedGPRN, CollapsedGuide]:
    """A model of some of the rows, at the same hyperparameters, and the posterior of its functions by that of all rows.

    All but the means of the functions is held: training changes nothing else.

    :param rows: the numbers of these rows, ``(n,)``.

    >>> model = CollapsedGPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> part, q = at_rows(model, CollapsedGuide(model), torch.tensor([0, 3]))
    >>> part.X.shape, q.posterior().event_shape
    (torch.Size([2, 1]), torch.Size([2, 2]))
    """
    # V' = Q V has the covariance (Q R)(Q R)ᵀ over rows.
    part = copy.deepcopy(model)
    part.X = model.X[rows]
    if model.has_inducing:  # the functions are where they were
        q = CollapsedGuide(part)
        q.load_state_dict(guide.state_dict())
        return _held(part, q), q
    Q = _to_rows(model, part, rows)
    q = CollapsedGuide(part, init_loc=Q @ guide.v_loc)
    root = torch.linalg.qr((Q @ guide.v_scale_row).mT, mode="r").R.mT
    q.set_rows(root * root.diagonal().sign())
    q.v_scale_col = guide.v_scale_col.clone()
    return _held(part, q), q


def _held(part: CollapsedGPRN, q: CollapsedGuide) -> CollapsedGPRN:
    """The model, of which training then changes nothing, nor of the posterior anything but the means."""
    for held in (part, q.v_scale_row_unconstrained, q.v_scale_col_unconstrained):
        held.requires_grad_(False)
    return part


@torch.no_grad()
def _to_rows(model: Network, part: Network, rows: Tensor) -> Tensor:
    """``Q``, ``(n, N)``, which makes whitened functions at some rows, of which ``part`` is the model, out of all."""
    # F = L V, so the functions at some rows are F_r = L_r V = L' (Q V) with L' the factor of these rows alone and
    # Q = L'⁻¹ L_r, whose rows are orthonormal.
    full, own = (each.at_centre(each.functions_factor) for each in (model, part))
    return torch.linalg.solve_triangular(own, full[rows], upper=False)


class _Functions(CollapsedTrainee):
    """Trains the functions of a posterior whose spread is held."""

    def between_steps(self, taken: int, settling: bool) -> None:
        """Nothing is due: the spread is not updated."""
