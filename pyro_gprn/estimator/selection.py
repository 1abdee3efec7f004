"""What a network is made of, where that was left open: chosen by what is held out (training/selection.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_gprn.collapsed.kernel_choice import KernelChoice
from pyro_gprn.metrics import gaussian_crps
from pyro_gprn.network.base import Network
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import evenly_spread
from pyro_gprn.outputs.variation import spread_of
from pyro_gprn.prediction import posterior_predictive, scales_of_outputs
from pyro_gprn.pyro_state import new_generator
from pyro_gprn.training.checkpoint import Checkpoint
from pyro_gprn.training.fit import Fit
from pyro_gprn.training.folds import Fold, make_folds
from pyro_gprn.training.selection import (
    FEWEST_ROWS,
    LATENTS,
    N_FOLDS,
    N_FOLDS_OF_MANY,
    HeldOut,
    Judgement,
    judge,
    smallest_of_the_best,
)
from pyro_gprn.training.widening import AS_THEY_ARE, Widening

#: Fits to folds take at most this many steps up to this many rows, and fewer, down to the third number, above: a step
#: costs N³.
FOLD_STEPS, FEW_ROWS, FEWEST_STEPS = 200, 100, 120
#: Scores are means over at most this many outputs, evenly spread.
N_SCORED = 300
#: Where each output has a kernel of its own, predictions of a fold are averages over so many draws: each draw has a
#: factor for each output, and with 128 draws of 18 outputs they took twice as long as the training.
N_DRAWS_WITH_OWN_KERNELS = 32
#: The kernel of the functions that is tried besides the usual one: several length-scales in place of one.
OTHER_FUNCTIONS = "rational_quadratic"
#: The names of the candidates whose functions are constant, and whose weights are.
INDEPENDENT_GPS, LINEAR_MODEL = "independent GPs", "linear model of coregionalisation"
#: The name of the candidate whose weights are constant and whose functions are integrated out. It is tried where Y has
#: holes, up to so many outputs and numbers: a fit costs the cube of all numbers.
COREGIONALISED, MOST_OUTPUTS, MOST_NUMBERS = "coregionalised GPs", 20, 2500


@dataclass(frozen=True)
class Recipe:
    """What a network is made of.

    :param kernel: of the weights, where that is chosen; of the functions where these carry all that varies.
    :param n_latents: K.
    :param starts: from where training starts; several are raced. None are the usual ones.
    :param has_constant_functions: True for independent GPs.
    :param has_constant_weights: True for the linear model of coregionalisation, its loadings integrated out.
    :param is_coregionalised: True for the linear model of coregionalisation, its functions integrated out.
    :param functions: the kernel of the functions, where that is left open; None is the usual one.
    """

    kernel: KernelChoice
    n_latents: int
    starts: tuple[str, ...] | None = None
    has_constant_functions: bool = False
    has_constant_weights: bool = False
    is_coregionalised: bool = False
    functions: str | None = None

    @property
    def is_network(self) -> bool:
        """True if both its functions and its weights vary."""
        return not (self.has_constant_functions or self.has_constant_weights or self.is_coregionalised)

    @property
    def is_fitted(self) -> bool:
        """True if hyperparameters of the weights came with the choice of the kernel."""
        return self.kernel.name in self.kernel.states and not (self.has_constant_weights or self.is_coregionalised)


class Selected(NamedTuple):
    """What was chosen, and why."""

    recipe: Recipe
    report: list[dict[str, Any]] = []  #: of :meth:`~pyro_gprn.training.selection.Judgement.report`
    widening: Widening = AS_THEY_ARE  #: what predicted standard deviations are to be multiplied by
    latent_scores: dict[int, float] = {}  #: the score of each number of functions that was tried
    identity: dict[str, Any] | None = None  #: of the search, if it had a checkpoint


#: An untrained network by a recipe, of inputs ``(n, P)`` and so many outputs.
MakeNetwork = Callable[[Recipe, Tensor, Sequence[int]], Network]
#: Trains it, on outputs with these statistics, by at most so many steps.
TrainNetwork = Callable[[Network, OutputStatistics, Recipe, int], Fit]


class Selection:
    """Fits candidates to folds of the data and takes what predicts the held-out entries best.

    The score is the mean continuous ranked probability score of the Gaussian that has a prediction's mean and variance,
    on the standardised scale.

    :param X: standardised inputs, ``(N, P)``.
    :param known: statistics of the standardised outputs.
    :param make: makes a network.
    :param train: trains it.
    :param steps: at most so many steps for a fold.
    :param has_scales: whether each output has a scale of its own.
    :param seed: of the folds and all draws.
    :param progress: whether to show a progress bar.
    :param file: a checkpoint for the scores of finished folds.
    """

    def __init__(
        self,
        X: Tensor,
        known: OutputStatistics,
        make: MakeNetwork,
        train: TrainNetwork,
        *,
        steps: int,
        has_scales: bool,
        seed: int,
        progress: bool,
        file: Checkpoint | None,
    ) -> None:
        self._X, self._known, self._make, self._train = X, known, make, train
        self._steps, self._has_scales, self._seed = min(steps, _fold_steps(len(X))), has_scales, seed
        self._progress, self._file = progress, file
        self._recipes: dict[str, Recipe] = {}
        self._refitted: dict[tuple[Fold, str | None], KernelChoice] = {}

    def choose(
        self,
        recipe: Recipe,
        starts: Sequence[str],
        *,
        with_limits: bool,
        with_coregionalised: bool,
        any_kernel: bool,
        any_functions: bool,
        any_latents: bool,
    ) -> Selected:
        """The recipe that predicts best what is held out.

        First the starts are compared, and the two limits of a network; then, for the best of these, the kernel with
        the second highest evidence, another kernel of the functions, and other numbers of functions.

        :param recipe: what is given.
        :param starts: between which to choose.
        :param with_limits: whether networks whose functions, or whose weights, are constant are candidates.
        :param with_coregionalised: whether, with these, coregionalised GPs are one, if the data allow it.
        :param any_kernel: whether the kernel may change.
        :param any_functions: whether the kernel of the functions may change.
        :param any_latents: whether the number of functions may change.
        """
        if len(self._X) < FEWEST_ROWS:
            return Selected(replace(recipe, n_latents=LATENTS[0]) if any_latents else recipe)
        first = {start: replace(recipe, starts=(start,)) for start in starts}
        if with_limits:
            one = replace(recipe, n_latents=1, starts=("independent",))
            first[INDEPENDENT_GPS] = replace(one, has_constant_functions=True)
            first[LINEAR_MODEL] = replace(recipe, starts=("functions",), has_constant_weights=True)
            if with_coregionalised and self._may_coregionalise():
                n_latents = min(recipe.n_latents, self._known.source.n_outputs)
                first[COREGIONALISED] = replace(recipe, n_latents=n_latents, is_coregionalised=True)
        judgement = self._judge(first, Judgement())
        best = judgement.best or next(iter(first), "as given")
        self._recipes.setdefault(best, recipe)
        others = self._with_other_kernels(best, any_kernel=any_kernel, any_functions=any_functions)
        if others:
            best = self._judge(others, judgement, are_challengers=True).best or best
        latent_scores: dict[int, float] = {}
        if any_latents and not self._recipes[best].has_constant_functions:
            best, latent_scores = self._choose_latents(best, judgement)
        identity = None if self._file is None else self._file.identity
        is_judged = best in judgement.deviations
        widening = judgement.widening(best, spread_of(self._truth).cpu()) if is_judged else AS_THEY_ARE
        return Selected(self._recipes[best], judgement.report(best), widening, latent_scores, identity)

    def _with_other_kernels(self, best: str, *, any_kernel: bool, any_functions: bool) -> dict[str, Recipe]:
        """The recipe of that name with the kernel of the second highest evidence, and with another of the functions."""
        given = self._recipes[best]
        others = {}
        if any_kernel and len(given.kernel.evidence) > 1:
            name = next(name for name in given.kernel.evidence if name != given.kernel.name)
            others[f"{best}, {name}"] = replace(given, kernel=given.kernel._replace(name=name))
        if any_functions and given.is_network:
            others[f"{best}, {OTHER_FUNCTIONS} functions"] = replace(given, functions=OTHER_FUNCTIONS)
        return others

    def _may_coregionalise(self) -> bool:
        """True if a few outputs have holes, which the other outputs may tell."""
        n_outputs = self._known.source.n_outputs
        is_few = 1 < n_outputs <= MOST_OUTPUTS and n_outputs * len(self._X) <= MOST_NUMBERS
        return is_few and not self._known.is_complete

    def _choose_latents(self, best: str, judgement: Judgement) -> tuple[str, dict[int, float]]:
        """The smallest number of functions that is not beaten, beside what else is best; adds to the judgement."""
        given = self._recipes[best]
        names = {K: f"{best}, {K} functions" for K in sorted({min(K, len(self._X)) for K in LATENTS})}
        if best in judgement.by_row:
            names[given.n_latents] = best
        others = {name: replace(given, n_latents=K) for K, name in names.items() if name != best}
        self._judge(others, judgement)
        scores = {K: judgement.score(name) for K, name in sorted(names.items()) if name in judgement.by_row}
        return smallest_of_the_best(judgement, [name for _, name in sorted(names.items())]), scores

    def _judge(self, recipes: dict[str, Recipe], so_far: Judgement, *, are_challengers: bool = False) -> Judgement:
        """Adds the scores of further candidates to a judgement."""
        self._recipes |= recipes
        return judge(
            list(recipes),
            self._folds,
            self._score,
            so_far=so_far,
            are_challengers=are_challengers,
            progress=self._progress,
            file=self._file,
        )

    @cached_property
    def _folds(self) -> list[Fold]:
        return make_folds(self._X, self._known, N_FOLDS if len(self._X) <= FEW_ROWS else N_FOLDS_OF_MANY, self._seed)

    @cached_property
    def _positions(self) -> Tensor:
        return torch.tensor(evenly_spread((self._known.source.n_outputs,), N_SCORED)[0], device="cpu")

    @cached_property
    def _truth(self) -> Tensor:
        return self._known.source.read(self._positions.to(self._X.device)).double()

    def _score(self, name: str, fold: Fold) -> HeldOut:
        """Fits a candidate to what a fold keeps, and predicts what it holds out."""
        known, X = fold.training(self._known), self._X[fold.kept.to(self._X.device)]
        recipe = self._on_fold(self._recipes[name], fold, X, known)
        model = self._make(recipe, X, (known.source.n_outputs,))
        guide = self._train(model, known, recipe, self._steps).guide
        settings: dict[str, Any] = {"generator": new_generator(self._seed)}
        if recipe.kernel.own_kernels and not recipe.is_coregionalised:
            settings["n_draws"] = N_DRAWS_WITH_OWN_KERNELS
        if self._has_scales:
            scales = scales_of_outputs(model, guide, as_rule=True, generator=new_generator(self._seed))
            if scales is not None:
                settings["output_scales"] = scales
        asked = fold.scored(len(self._X), self._positions)
        rows = (asked[0] | asked[1]).any(1).nonzero().flatten()
        predictive = posterior_predictive(model, guide, self._X[rows.to(self._X.device)], known, **settings)
        positions = self._positions.tolist()
        # The variance first: what it needs of the draws holds what the mean needs.
        variance, mean = predictive.variance(positions).detach(), predictive.mean(positions).detach()
        deviation = variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()
        truth = self._truth[rows.to(self._X.device)]
        found = torch.full((3, *self._truth.shape), torch.nan, dtype=torch.float64, device="cpu")
        crps = gaussian_crps(mean, deviation, truth)
        found[:, rows] = torch.stack([crps, (truth - mean).abs() / deviation, mean]).cpu()
        scores, deviations, means = torch.where(torch.stack(asked, 1), found.unsqueeze(2), torch.nan)  # (N, 2, b)
        return HeldOut(scores.nanmean(2), deviations, means)

    def _on_fold(self, recipe: Recipe, fold: Fold, X: Tensor, known: OutputStatistics) -> Recipe:
        """The recipe with the independent GPs of its kernel fitted to what a fold keeps, once for all candidates."""
        kernel = recipe.kernel
        if kernel.name not in kernel.states or recipe.is_coregionalised:
            return recipe
        key = (fold, kernel.name)
        if key not in self._refitted:
            self._refitted[key] = kernel.refitted(X, known)
        return replace(recipe, kernel=self._refitted[key])


def _fold_steps(n_rows: int) -> int:
    return max(FEWEST_STEPS, min(FOLD_STEPS, round(FOLD_STEPS * (FEW_ROWS / n_rows) ** 2)))
