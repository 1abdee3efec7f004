"""Training of posteriors q(F) q(W) by their closed-form bound."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from pyro.contrib.gp.kernels import Constant
from torch import Tensor
from torch.nn import Parameter

from pyro_gprn.algebra.linalg import NotPositiveDefiniteError
from pyro_gprn.collapsed.independent import fit_independent
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.factorised.elbo import closed_form_bound
from pyro_gprn.factorised.guide import FactorisedGuide, has_one_noise
from pyro_gprn.factorised.kronecker import KroneckerGuide
from pyro_gprn.factorised.mean_field import MeanFieldGuide
from pyro_gprn.factorised.mixture import MixtureGuide
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import new_generator, new_seed
from pyro_gprn.training.fit import Fit, TrainingSettings, train
from pyro_gprn.training.loop import Trainee, descend
from pyro_gprn.training.ranges import Ranges

#: Steps between exact updates of the mean of q(W).
MEAN_EVERY = 50
#: An exact update costs O((NK)³), so there are none if N·K is above this. Nor are there any if outputs have holes: on
#: PM2.5 training with them ended at a lower bound on three of five splits, and at a higher error on four.
MEAN_UP_TO = 1500
#: The least noise to start with. With less, this posterior's bound starts too low to recover: on a smooth field without
#: noise it was −2.6 million after 600 steps, against 14 thousand when started here.
START_NOISE = 0.1


def fit_kronecker(
    model: GPRN,
    Y: Any,
    *,
    guide: KroneckerGuide | None = None,
    steps: int = 1000,
    learning_rate: float = 0.03,
    **settings: Any,
) -> Fit:
    """Trains a network with the paper's posterior: hyperparameters and :class:`~pyro_gprn.KroneckerGuide`.

    Training starts from independent GPs with one shared kernel. It maximises the closed-form bound by Adam, and every
    so often sets the mean of q(W) to its exact optimum (not where outputs have holes). The parameters are those of
    :func:`~pyro_gprn.fit_collapsed`.
    For complete outputs with one noise the mean is projected, and a step costs the same for any number of outputs;
    otherwise the mean is held in full, N·K·D numbers.

    >>> X = torch.linspace(0, 1, 12)[:, None]
    >>> Y = torch.sin(6 * X + torch.linspace(0, 3, 200))
    >>> fit = fit_kronecker(GPRN(X, output_shape=200, n_latents=2), Y, steps=20, seed=0, progress=False)
    >>> fit.bound >= fit.start
    True
    """
    return _fit(KroneckerTrainee, model, Y, guide, TrainingSettings(steps, learning_rate, **settings))


def fit_mean_field(
    model: GPRN,
    Y: Any,
    *,
    guide: MeanFieldGuide | None = None,
    steps: int = 300,
    learning_rate: float = 0.05,
    **settings: Any,
) -> Fit:
    """Trains a network with the mean-field posterior: hyperparameters and :class:`~pyro_gprn.MeanFieldGuide`.

    Training starts from independent GPs with one shared kernel. Each step is a sweep, which sets every factor of the
    posterior in turn to its exact optimum, and one step of Adam on the hyperparameters. The parameters are those of
    :func:`~pyro_gprn.fit_collapsed`. For complete outputs with one noise the mean of the weights is projected, and a
    step costs the same for any number of outputs. Otherwise it is held in full, N·K·D numbers, and a sweep takes K
    factorisations of an N×N matrix for each pattern of holes, or for each output that has a noise of its own.

    >>> X = torch.linspace(0, 1, 12)[:, None]
    >>> Y = torch.sin(6 * X + torch.linspace(0, 3, 200))
    >>> fit = fit_mean_field(GPRN(X, output_shape=200, n_latents=2), Y, steps=20, seed=0, progress=False)
    >>> fit.bound >= fit.start
    True
    """
    return _fit(MeanFieldTrainee, model, Y, guide, TrainingSettings(steps, learning_rate, **settings))


def fit_mixture(
    model: GPRN,
    Y: Any,
    *,
    guide: MixtureGuide | None = None,
    components: int = 2,
    steps: int = 1000,
    learning_rate: float = 0.03,
    **settings: Any,
) -> Fit:
    """Trains a network with a mixture of isotropic Gaussians: hyperparameters and :class:`~pyro_gprn.MixtureGuide`.

    It trains as :func:`fit_kronecker` does, by Adam on the closed-form bound and exact updates of the weights' mean in
    each component. All components start near independent GPs with one shared kernel, and near each other.

    :param components: how many components a new guide has.

    >>> X = torch.linspace(0, 1, 12)[:, None]
    >>> Y = torch.sin(6 * X + torch.linspace(0, 3, 200))
    >>> fit = fit_mixture(GPRN(X, output_shape=200, n_latents=2), Y, steps=20, seed=0, progress=False)
    >>> fit.bound >= fit.start, len(fit.guide.scale)
    (True, 2)
    """
    how = TrainingSettings(steps, learning_rate, **settings)
    return _fit(MixtureTrainee, model, Y, guide, how, components=components)


def _fit(
    trainee: type[FactorisedTrainee],
    model: GPRN,
    Y: Any,
    guide: FactorisedGuide | None,
    how: TrainingSettings,
    **of_guide: Any,
) -> Fit:
    """Trains a model and a guide of it. A new guide is made with what ``of_guide`` says."""
    if not model.is_gaussian:
        raise ValueError(
            f"{trainee.function} trains by the closed-form bound, but {type(model).__name__} has a likelihood of its"
            " own: train it by pyro.infer.SVI with TraceMeanField_ELBO"
        )
    if guide is not None and not isinstance(guide, trainee.guide_class):
        expected = trainee.guide_class.__name__
        raise ValueError(f"{trainee.function} goes on from a {expected}; got a {type(guide).__name__}")
    known = Y if isinstance(Y, OutputStatistics) else OutputStatistics.of(Y)

    def prepare() -> dict[str, Any]:
        if guide is None:
            _start_from_independent(model, known)
        return {}

    def make(generator: torch.Generator) -> FactorisedTrainee:
        return trainee(model, known, how.learning_rate, generator, guide, **of_guide)

    identity = {"posterior": trainee.guide_class.__name__, **of_guide}
    fit, _ = train(model, known, how, prepare=prepare, make=make, guide=guide, identity=identity)
    return fit


def _start_from_independent(model: GPRN, known: OutputStatistics) -> None:
    """Fits independent GPs by a collapsed model, and takes over its noise and its kernel of the weights."""
    constant = Constant(model.X.shape[1], variance=model.X.new_ones(()))
    kernel_w = copy.deepcopy(model.kernel_w)
    independent = CollapsedGPRN(model.X, model.output_shape, 1, kernel_f=constant, kernel_w=kernel_w)
    fit_independent(independent, known)
    model.kernel_w.load_state_dict(kernel_w.state_dict())
    model.noise_y = independent.noise_y.detach().expand(model.noise_y.shape).clamp(min=START_NOISE)


def _is_projection_best(model: GPRN, known: OutputStatistics) -> bool:
    """True if the best mean of the weights is ``B Y`` with one B for all outputs."""
    return known.is_complete and has_one_noise(model)


class FactorisedTrainee(Trainee):
    """A network and its posterior q(F) q(W) in training by Adam on the closed-form bound.

    :param model: the model.
    :param known: statistics of the outputs.
    :param learning_rate: Adam's learning rate.
    :param generator: source of random numbers.
    :param guide: a posterior to go on from; by default a new one.
    :param of_guide: what else a new one is made with.
    """

    model: GPRN
    guide: Any
    guide_class: ClassVar[Any]  #: the class of the posterior
    function: ClassVar[str]  #: the name of the function that trains it

    def __init__(
        self,
        model: GPRN,
        known: OutputStatistics,
        learning_rate: float,
        generator: torch.Generator,
        guide: FactorisedGuide | None = None,
        **of_guide: Any,
    ) -> None:
        self.model, self._known, self._generator = model, known, generator
        if guide is None:
            mean = "projected" if _is_projection_best(model, known) else "full"
            guide = self.guide_class(model, mean=mean, generator=generator, **of_guide)
        self.guide = guide
        self._Y, self._mask = self.guide.observed(known)
        self.ranges = Ranges(model, known)
        self._evaluation_seed = new_seed(generator) if model.has_spread else 0  # of hyperparameters
        self.update()
        parameters = [p for p in self.free_parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(parameters, lr=learning_rate, fused=True)

    def free_parameters(self) -> list[Parameter]:
        """The parameters that Adam changes."""
        return [*self.model.parameters(), *self.guide.parameters()]

    @abstractmethod
    def update(self) -> None:
        """Sets what has an exact optimum to it."""

    def step(self) -> float:
        self.optimiser.zero_grad()
        try:
            loss = -self._bound(self._generator)
        except NotPositiveDefiniteError:
            return math.nan
        if descend(self.optimiser, loss):
            self.ranges.clamp()
        return loss.item()

    @torch.no_grad()
    def evaluate(self) -> float:
        try:
            return self._bound(new_generator(self._evaluation_seed)).item()
        except NotPositiveDefiniteError:
            return -math.inf

    def _bound(self, generator: torch.Generator) -> Tensor:
        """The bound of :class:`~pyro_gprn.ClosedFormELBO`, without the cost of tracing model and guide."""
        (posterior, prior, noise), log_prior = self.model.with_log_prior(
            lambda: (self.guide.posterior(self._known), self.model.prior(), self.model.noise_y), generator
        )
        return closed_form_bound(posterior, prior, self._Y, noise, self._mask) + log_prior

    def finish(self, steps: int, start: float) -> None:
        self.update()


class KroneckerTrainee(FactorisedTrainee):
    """The paper's model and posterior in training: every so often the mean of q(W) is set to its exact optimum."""

    guide_class: ClassVar[Any] = KroneckerGuide
    function = "fit_kronecker"

    def between_steps(self, taken: int, settling: bool) -> None:
        if taken % MEAN_EVERY == 0 and not settling:
            self.update()

    def update(self) -> None:
        is_small = self.model.n_rows * self.model.n_latents <= MEAN_UP_TO
        if is_small and _is_projection_best(self.model, self._known):
            self.guide.update_mean(self._known)


class MixtureTrainee(KroneckerTrainee):
    """A mixture in training: every so often the weights' mean in each component is set to its exact optimum."""

    guide_class, function = MixtureGuide, "fit_mixture"


class MeanFieldTrainee(FactorisedTrainee):
    """The mean-field posterior in training: before each step of Adam on the hyperparameters there is a sweep."""

    guide_class, function = MeanFieldGuide, "fit_mean_field"

    def free_parameters(self) -> list[Parameter]:
        return list(self.model.parameters())

    def update(self) -> None:
        self.guide.sweep(self._known)

    def step(self) -> float:
        self.update()
        return super().step()
