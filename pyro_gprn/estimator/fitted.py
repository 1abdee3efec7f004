"""The one record of a fit: what predictions, files, checkpoints, warm starts and diagnostics take."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Size, Tensor

from pyro_gprn.collapsed import CollapsedGPRN, output_correlation
from pyro_gprn.collapsed.prediction import N_DRAWS
from pyro_gprn.estimator.containers import Template
from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.network.base import Network
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import Outputs, OutputSelection
from pyro_gprn.outputs.source import OutputSource
from pyro_gprn.prediction import PosteriorPredictive, posterior_predictive
from pyro_gprn.pyro_state import new_generator

#: Numbers that one block of new inputs may hold: draws × training rows × new rows.
BLOCK_NUMBERS = 2**24


@dataclass(frozen=True)
class FittedNetwork:
    """A fitted network with its data, in the model's units, and the way back to the data's own.

    :param model: the Pyro model, of standardised data.
    :param guide: its posterior.
    :param known: statistics of the standardised outputs; their source reads Y as it came.
    :param outputs: source of Y as it came, ``(N, d_1, …, d_M)``.
    :param scaling: between the model's units and the data's.
    :param template: what Y was like, for predictions to take after.
    :param output_shape: ``(d_1, …, d_M)``.
    :param present: positions of the outputs that the model has, where some were never observed; otherwise None.
    :param kernels: the settings ``kernel_f`` and ``kernel_w`` as they were given.
    :param seed: of the draws that predictions are made of.
    :param runs: of each restart: "bound", "start", "losses", "starts", and the states of "model" and "guide".
    :param bound: the best run's.
    :param losses: the best run's, ``(steps,)``.
    :param latent_scores: with ``n_latents="auto"``, the held-out log density of each number that was tried.
    :param kernel_evidence: with ``kernel_w="auto"``, the log evidence of each kernel that was tried, the best first.
    :param training_identity: what the fit depended on, if it had a checkpoint: a warm start goes on from it.
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
    latent_scores: dict[int, float] = field(default_factory=dict)
    kernel_evidence: dict[str, float] = field(default_factory=dict)
    training_identity: dict[str, Any] | None = None

    @cached_property
    def identity(self) -> str:
        """A fingerprint of the training outputs as they came: one pass over Y, the first time it is asked for."""
        return self.outputs.digest()

    @property
    def inputs(self) -> Tensor:
        """The training inputs in their own units, ``(N, P)``."""
        return self.scaling.undo_inputs(self.model.X)

    @property
    def best_run(self) -> int:
        """The restart that predictions come from."""
        return max(range(len(self.runs)), key=lambda run: self.runs[run]["bound"])

    def run(self, number: int) -> tuple[Network, Any]:
        """Model and guide as one of the restarts left them: copies."""
        model, guide = copy.deepcopy((self.model, self.guide))
        model.load_state_dict(self.runs[number]["model"])
        guide.load_state_dict(self.runs[number]["guide"])
        return model, guide

    def mean(self, X: Tensor) -> Tensor:
        """The mean at new inputs ``(N*, P)``, flat ``(N*, D)``, in Y's units and type."""
        result = self._empty(X)
        for predictive, rows in self._by_block(X):
            self.scaling.undo(predictive.mean(out=result[rows]).flatten(1))
        return result

    def standard_deviation(self, X: Tensor) -> Tensor:
        """Of the outputs with their noise, flat ``(N*, D)``, in Y's units and type."""
        result = self._empty(X)
        for predictive, rows in self._by_block(X):
            predictive.variance(out=result[rows])
        return self.scaling.undo_spread(result.sqrt_())

    def sample(self, X: Tensor, n_draws: int, seed: int | None) -> Tensor:
        """Draws with noise, joint over inputs and outputs, flat ``(n_draws, N*, D)``, in Y's units."""
        return self.scaling.undo(self.predictive(X, new_generator(seed)).sample(n_draws).flatten(2))

    def log_density(self, X: Tensor, Y: Tensor) -> Tensor:
        """``log p(y*_nd | data)`` of flat outputs ``(N*, D)`` in their own units; NaN where Y is."""
        values = self.scaling.outputs(self._present_of(Y)).reshape(len(Y), *self.model.output_shape)
        densities = [predictive.log_density(values[rows]).flatten(1) for predictive, rows in self._by_block(X)]
        return torch.cat(densities) - self.scaling.y_scale.log()

    def correlation(self, X: Tensor, outputs: Outputs = None) -> Tensor:
        """The correlation between outputs at new inputs, ``(N*, b, b)``; NaN for outputs that were never observed."""
        if not isinstance(self.model, CollapsedGPRN):
            raise ValueError(
                f"the correlation of outputs needs inference='collapsed', a CollapsedGPRN; got"
                f" {type(self.model).__name__}"
            )
        positions = OutputSelection(outputs, Size(self.output_shape)).all_positions()
        generator = new_generator(self.seed)
        if self.present is None:
            return output_correlation(self.model, self.guide, X, positions.tolist(), self.known, generator=generator)
        places = torch.searchsorted(self.present, positions).clamp(max=len(self.present) - 1)
        is_present = self.present[places] == positions
        result = torch.full((len(X), len(positions), len(positions)), math.nan, dtype=torch.float64)
        if is_present.any():
            some = is_present.nonzero().flatten()
            choice = places[some].tolist()
            found = output_correlation(self.model, self.guide, X, choice, self.known, generator=generator)
            result[:, some[:, None], some] = found.to(result)
        return result

    def predictive(self, X: Tensor, generator: torch.Generator) -> PosteriorPredictive:
        """The outputs at new inputs ``(N*, P)``, all in the model's units."""
        return posterior_predictive(self.model, self.guide, X, self.known, generator=generator)

    def _by_block(self, X: Tensor) -> Iterator[tuple[PosteriorPredictive, slice]]:
        """Predictions for some inputs at a time, the same whatever inputs stand beside them."""
        size = max(1, BLOCK_NUMBERS // (N_DRAWS * len(self.model.X)))
        for start in range(0, len(X), size):
            rows = slice(start, start + size)
            yield self.predictive(X[rows], new_generator(self.seed)), rows

    def _empty(self, X: Tensor) -> Tensor:
        return torch.empty(len(X), self.known.source.n_outputs, dtype=self.outputs.dtype, device=X.device)

    def _present_of(self, Y: Tensor) -> Tensor:
        return Y if self.present is None else Y[:, self.present]
