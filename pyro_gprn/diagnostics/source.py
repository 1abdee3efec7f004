"""What is diagnosed: an estimator, a model with its guide, or an MCMC run, in one form."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pyro.infer import MCMC
from torch import Tensor

from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.estimator import GPRNRegressor
from pyro_gprn.estimator.containers import Template, plain
from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.outputs.selection import Outputs, OutputSelection, evenly_spread

#: More numbers than this (draws × rows × outputs) are not exported unasked.
MOST_NUMBERS = 10_000_000

Posterior = Callable | Mapping[str, Tensor]


@dataclass(frozen=True)
class Subject:
    """A posterior, by chain, with the data and the names of what it is about."""

    chains: list[tuple[CollapsedGPRN, Posterior]]  #: each with the model at its own hyperparameters
    Y: Tensor  #: outputs as the model has them, (N, d_1, …, d_M)
    scaling: Scaling | None  #: from the model's units to the data's
    template: Template | None  #: names of the outputs
    inputs: np.ndarray  #: (N, P), in the data's units

    @property
    def model(self) -> CollapsedGPRN:
        return self.chains[0][0]

    @classmethod
    def of(cls, source: Any) -> Subject:
        """:param source: a fitted regressor, ``(model, guide)``, ``(model, mcmc)`` or ``(model, draws)``."""
        if isinstance(source, GPRNRegressor):
            return cls._of_regressor(source)
        if not (isinstance(source, tuple) and len(source) == 2):
            raise ValueError(
                "diagnostics take a fitted GPRNRegressor, (model, guide), (model, mcmc) or (model, draws); got"
                f" {type(source).__name__}"
            )
        model, posterior = source
        chains: list[tuple[CollapsedGPRN, Posterior]] = [(model, posterior)]
        _check_collapsed(model)
        known = model.statistics()
        if isinstance(posterior, MCMC):
            posterior = posterior.get_samples(group_by_chain=True)
            n_chains = len(posterior["v"])
            chains = [(model, {name: draws[i] for name, draws in posterior.items()}) for i in range(n_chains)]
        return cls(chains, known.outputs, None, None, model.X.cpu().numpy())

    @classmethod
    def _of_regressor(cls, r: GPRNRegressor) -> Subject:
        if not hasattr(r, "model_"):
            raise ValueError("the regressor is not fitted yet: call fit first")
        _check_collapsed(r.model_)
        Y = r._outputs.reshape(-1, *r.output_shape_)
        chains = []
        for run in r._restarts:
            model, guide = copy.deepcopy((r.model_, r.guide_))
            model.load_state_dict(run["model"])
            guide.load_state_dict(run["guide"])
            model.statistics(Y)
            chains.append((model, guide))
        inputs = (r.model_.X * r._scaling.x_scale + r._scaling.x_mean).cpu().numpy()
        return cls(chains, Y, r._scaling, r._template, inputs)

    def choose(self, outputs: Outputs, n_draws: int) -> OutputSelection:
        """The outputs asked for; by default all, or as many, evenly spread, as there is reasonable room for."""
        shape = self.model.output_shape
        if outputs is None:
            outputs = evenly_spread(shape, max(1, MOST_NUMBERS // (len(self.chains) * n_draws * len(self.Y))))
        return OutputSelection(outputs, shape)

    def undo(self, values: Tensor, positions: Tensor) -> np.ndarray:
        """Outputs ``(…, b)`` of the model in the data's units."""
        if self.scaling is not None:
            scale, mean = self.scaling.y_scale, self.scaling.y_mean
            values = values * (scale if scale.dim() == 0 else scale[positions]) + mean[positions]
        return values.cpu().numpy()

    def standardise_inputs(self, X: Any) -> Tensor:
        """New inputs in the model's units."""
        read = torch.as_tensor(np.asarray(plain(X), dtype=np.float64)).to(self.model.X.device)
        return read if self.scaling is None else self.scaling.inputs(read)

    def output_dims(self) -> tuple[list[str], list[Sequence[Any]]]:
        """Names of the outputs' modes, and labels along each."""
        shape = self.model.output_shape
        names = [f"output_{m + 1}" for m in range(len(shape))] if len(shape) > 1 else ["output"]
        labels: list[Sequence[Any]] = [range(size) for size in shape]
        template = self.template
        if template is not None and template.library == "pandas" and len(shape) == 1:
            labels = [[str(name) for name in template.names]]
        if template is not None and template.library == "xarray" and template.shape == tuple(shape):
            names = [str(name) for name in template.names[1:]]
            known = zip(names, shape, strict=True)
            labels = [list(template.coordinates.get(name, np.arange(size))) for name, size in known]
        return names, labels


def _check_collapsed(model: Any) -> None:
    if not isinstance(model, CollapsedGPRN):
        raise ValueError(
            f"diagnostics need the weights integrated out: a CollapsedGPRN, inference='collapsed'; got"
            f" {type(model).__name__}"
        )
