"""The one record of a fit: what predictions, files, checkpoints, warm starts and diagnostics take."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Size, Tensor

from pyro_gprn.collapsed.conditioned import MOST_DRAWS, WhiteCoordinates
from pyro_gprn.estimator.containers import Template
from pyro_gprn.estimator.data import TrainingData
from pyro_gprn.estimator.predicted import PredictedOutputs
from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.network.base import Network
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.lazy import DaskOutputs
from pyro_gprn.outputs.selection import Outputs, OutputSelection
from pyro_gprn.outputs.source import OutputSource
from pyro_gprn.prediction import (
    Conditioned,
    PosteriorPredictive,
    condition,
    output_correlation,
    posterior_predictive,
    prediction_settings,
    scales_of_outputs,
)
from pyro_gprn.prediction.scales import OutputScales, Scales
from pyro_gprn.pyro_state import MANY_ROWS, new_generator, one_torch_thread
from pyro_gprn.training.widening import AS_THEY_ARE, Widening

#: With this many outputs or more torch keeps its threads: products with Y gain from them.
MANY_OUTPUTS = 10**5
#: Numbers that one block of new inputs may hold: draws × training rows × new rows.
BLOCK_NUMBERS = 2**24


@dataclass(frozen=True)
class FittedNetwork:
    """A fitted network with its data and their scaling.

    The network is one of standardised data: their units are the model's units. Methods take new inputs in the model's
    units, and return outputs in the data's own.

    :param model: the Pyro model.
    :param guide: its posterior.
    :param known: statistics of the standardised outputs, with a source that standardises Y as it is read.
    :param outputs: reads Y as it came, ``(N, d_1, …, d_M)``.
    :param scaling: between the model's units and the data's.
    :param template: the kind, type, shape and names of Y, which predictions have too.
    :param output_shape: ``(d_1, …, d_M)``.
    :param present: positions of the outputs that the model has, if some were never observed; otherwise None.
    :param kernels: the settings ``kernel_f`` and ``kernel_w`` as they were given.
    :param seed: seed of the draws over which predictions are averaged.
    :param runs: for each restart: "bound", "start", "losses", "starts", and the states of "model" and "guide".
    :param bound: the bound of the best run.
    :param losses: the negative bound at each step of the best run, ``(steps,)``.
    :param selection: what was held out says of each candidate that was tried, the best first.
    :param widening: what the scales of the outputs are multiplied by, for what was held out; and what those of missing
        entries of training rows are to be multiplied by.
    :param latent_scores: with ``n_latents="auto"``, the held-out score of each number that was tried.
    :param kernel_evidence: with ``kernel_w="auto"``, the log evidence of each kernel that was tried, highest first.
    :param training_identity: what the fit depended on, if it had a checkpoint. The checkpoint of a warm start names it.
    :param coordinates: white coordinates of the outputs, from a file; None makes them of some outputs.
    :param fills_holes: whether other outputs of a training row tell its missing ones, where the method can do so.
    :param scales: those of a file; True for scales to be learned when they are first needed, a number for such with
        this ν; False for none.

    >>> from pyro_gprn import GPRNRegressor
    >>> X = torch.linspace(0, 1, 8)[:, None]
    >>> r = GPRNRegressor(1, selection=False, steps=2, seed=0, progress=False)
    >>> fitted = r.fit(X, torch.sin(X + torch.arange(3))).fitted_
    >>> torch.allclose(fitted.inputs, X.double()), fitted.mean(fitted.model.X[:4]).shape
    (True, torch.Size([4, 3]))
    """

    model: Network
    guide: Any
    known: OutputStatistics
    outputs: OutputSource
    scaling: Scaling
    template: Template
    output_shape: tuple[int, ...]
    present: Tensor | None
    kernels: dict[str, Any]
    seed: int
    runs: list[dict[str, Any]]
    bound: float
    losses: Tensor
    selection: list[dict[str, Any]] = field(default_factory=list)
    widening: Widening = AS_THEY_ARE
    latent_scores: dict[int, float] = field(default_factory=dict)
    kernel_evidence: dict[str, float] = field(default_factory=dict)
    training_identity: dict[str, Any] | None = None
    coordinates: WhiteCoordinates | None = None
    fills_holes: bool = True
    scales: OutputScales | float | bool = False
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, data: TrainingData, **fit: Any) -> FittedNetwork:
        """The record of a fit to some data; ``fit`` has all that the data do not."""
        shared = ("known", "outputs", "scaling", "template", "output_shape", "present")
        return cls(**{name: getattr(data, name) for name in shared}, **fit)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": {}}  # which can be made again

    @cached_property
    def identity(self) -> str:
        """A fingerprint of the training outputs as they came: one pass over Y, the first time it is asked for."""
        return self.outputs.digest()

    @property
    def is_lazy(self) -> bool:
        """True if Y is not in memory, so that predictions are made chunk by chunk when they are computed."""
        return isinstance(self.outputs, DaskOutputs)

    @cached_property
    def output_scales(self) -> Scales | None:
        """A scale for each output, if the fit has such: one pass over Y, the first time they are needed.

        Of a lazy fit it is the rule that tells them from a chunk of Y: no pass.
        """
        if isinstance(self.scales, OutputScales):
            return self.scales
        return self.learn_scales(self.model, self.guide)

    def learn_scales(self, model: Network, guide: Any) -> Scales | None:
        """The scale of each output, if the fit has such, by model and guide of one of its restarts."""
        if self.scales is False:
            return None
        settings: dict[str, Any] = {"as_rule": self.is_lazy, "widening": self.widening}
        if isinstance(self.scales, float):
            settings["prior_degrees"] = self.scales
        with self._threads(1):
            return scales_of_outputs(model, guide, self.known, generator=new_generator(self.seed), **settings)

    def conditioned(self) -> Conditioned | None:
        """What predictions share whatever their inputs; None if the network has its weights.

        Where the weights are integrated out, the draws of which predictions are averages, conditioned on the data; of
        a coregionalised network the functions, likewise.

        Made when it is first needed, and again if model or guide have been changed since, say by more training.
        """
        state = [(id(each), each._version) for part in (self.model, self.guide) for each in _tensors(part)]
        kept = self._kept.get("conditioned")
        if kept is None or kept[0] != state:
            generator = new_generator(self.seed)
            made = condition(self.model, self.guide, self.known, generator=generator, coordinates=self.coordinates)
            self._kept["conditioned"] = kept = (state, made)
        return kept[1]

    @property
    def inputs(self) -> Tensor:
        """The training inputs in their own units, ``(N, P)``."""
        return self.scaling.undo_inputs(self.model.X)

    @property
    def best_run(self) -> int:
        """The number of the restart with the best bound, from which predictions come."""
        return max(range(len(self.runs)), key=lambda run: self.runs[run]["bound"])

    def run(self, number: int) -> tuple[Network, Any]:
        """Copies of model and guide in the state in which one of the restarts ended."""
        model, guide = copy.deepcopy((self.model, self.guide))
        model.load_state_dict(self.runs[number]["model"])
        guide.load_state_dict(self.runs[number]["guide"])
        return model, guide

    def mean(self, X: Tensor, deviation: Tensor | None = None) -> Tensor:
        """The mean at new inputs ``(N*, P)``, flat ``(N*, D)``, in Y's units and type.

        :param deviation: if given, a tensor from :meth:`empty` that is filled with the standard deviation of the
            outputs, noise included.
        """
        with self._threads(self.known.source.n_outputs):
            return self._predicted(X, scaled=deviation is not None).mean(deviation)  # scales do not change the mean

    def quantiles(self, X: Tensor, probabilities: list[float]) -> Tensor:
        """Of each output with its noise, flat ``(p, N*, D)``, in Y's units and type."""
        with self._threads(self.known.source.n_outputs):
            return self._predicted(X).quantiles(probabilities)

    def sample(self, X: Tensor, n_draws: int, seed: int | None) -> Tensor:
        """Draws of the outputs with noise, joint over inputs and outputs, flat ``(n_draws, N*, D)``, in Y's units."""
        with self._threads(self.known.source.n_outputs):
            together = [(self.predictive(X, new_generator(seed)), slice(None))]
            return self._predicted(X, together).sample(n_draws)

    def log_density(self, X: Tensor, Y: Tensor) -> Tensor:
        """``log p(y*_nd | data)`` of flat outputs ``Y``, ``(N*, D)``, in their own units; NaN where ``Y`` is NaN."""
        with self._threads(self.known.source.n_outputs):
            return self._predicted(X).log_density(self._present_of(Y))

    def _predicted(
        self, X: Tensor, parts: Iterable[tuple[PosteriorPredictive, slice]] | None = None, *, scaled: bool = True
    ) -> PredictedOutputs:
        parts = self.by_block(X, scaled=scaled) if parts is None else parts
        return PredictedOutputs(parts, self.scaling, (len(X), self.known.source.n_outputs), self.outputs.dtype)

    def correlation(self, X: Tensor, outputs: Outputs = None) -> Tensor:
        """The correlation between outputs at new inputs, ``(N*, b, b)``; NaN for outputs that were never observed."""
        positions = OutputSelection(outputs, Size(self.output_shape)).all_positions().to(self.model.X.device)
        if self.present is None:
            return self._correlation(X, positions)
        places = torch.searchsorted(self.present, positions).clamp(max=len(self.present) - 1)
        is_present = self.present[places] == positions
        result = torch.full((len(X), len(positions), len(positions)), math.nan, dtype=torch.float64)
        if is_present.any():
            some = is_present.nonzero().flatten()
            result[:, some[:, None], some] = self._correlation(X, places[some]).to(result)
        return result

    def _correlation(self, X: Tensor, positions: Tensor) -> Tensor:
        """The correlation between the outputs at some positions among those that the model has."""
        generator = new_generator(self.seed)
        return output_correlation(self.model, self.guide, X, positions.tolist(), self.known, generator=generator)

    def predictive(
        self,
        X: Tensor,
        generator: torch.Generator,
        *,
        scaled: bool = True,
        conditioned: Conditioned | None = None,
    ) -> PosteriorPredictive:
        """The predictive distribution at new inputs ``(N*, P)``, inputs and outputs in the model's units.

        :param scaled: False leaves the scales of the outputs out, on which the mean does not depend.
        :param conditioned: draws to average over, from :meth:`conditioned`; None makes new ones by the generator.
        """
        available = {
            "conditioned": conditioned,
            "output_scales": self.output_scales if scaled else None,
            "variance_type": self.outputs.dtype,
            "fills_holes": self.fills_holes,
        }
        settings = {name: available[name] for name in prediction_settings(self.model)}
        return posterior_predictive(self.model, self.guide, X, self.known, generator=generator, **settings)

    def by_block(self, X: Tensor, *, scaled: bool = True) -> Iterator[tuple[PosteriorPredictive, slice]]:
        """Predictions for a block of inputs at a time; those for an input do not depend on the other inputs."""
        conditioned = self.conditioned()
        n_held = MOST_DRAWS * len(self.model.X) if conditioned is None else conditioned.n_held
        size = max(1, BLOCK_NUMBERS // n_held)
        for start in range(0, len(X), size):
            rows, generator = slice(start, start + size), new_generator(self.seed)
            yield self.predictive(X[rows], generator, scaled=scaled, conditioned=conditioned), rows

    def _threads(self, n_outputs: int) -> AbstractContextManager[None]:
        """One torch thread for work with small matrices and so many outputs, or as many as there are."""
        is_small = len(self.model.X) < MANY_ROWS and n_outputs < MANY_OUTPUTS
        return one_torch_thread() if is_small else nullcontext()

    def undo_at(self, values: Tensor, positions: Tensor) -> Tensor:
        """The model's values ``(…, b)`` of the outputs at some positions, in the data's units."""
        if not self.is_lazy:
            return self.scaling.undo_at(values, positions)
        source: Any = self.known.source
        _, mean, scale = source.standard.apply(source.read_as_it_is(positions))
        return values * scale + mean

    def empty(self, X: Tensor) -> Tensor:
        """An empty tensor for predictions at new inputs ``(N*, P)``, flat ``(N*, D)``, in Y's type."""
        return torch.empty(len(X), self.known.source.n_outputs, dtype=self.outputs.dtype, device=X.device)

    def _present_of(self, Y: Tensor) -> Tensor:
        return Y if self.present is None else Y[:, self.present]


def _tensors(module: Any) -> Iterator[Tensor]:
    """The parameters and buffers of a module; none of a guide that is no module."""
    if isinstance(module, torch.nn.Module):
        yield from module.parameters()
        yield from module.buffers()
