"""What diagnostics are about: a fitted estimator, a model with its guide, or an MCMC run, in one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pyro.infer import MCMC
from torch import Tensor

from pyro_gprn.collapsed.draws import Posterior
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.estimator import GPRNRegressor
from pyro_gprn.estimator.containers import plain
from pyro_gprn.estimator.fitted import FittedNetwork
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import Outputs, OutputSelection, evenly_spread
from pyro_gprn.prediction.scales import OutputScales

#: More numbers than this (draws × rows × outputs) are not exported unasked.
MOST_NUMBERS = 10_000_000


@dataclass(frozen=True)
class PosteriorSource:
    """A posterior, by chain, with the data and the names of what it is about.

    :param chains: each with the model at its own hyperparameters, which knows the data.
    :param known: statistics of the outputs as the model has them.
    :param inputs: ``(N, P)``, in the data's units.
    :param fitted: the record of the fit, if an estimator made it.
    """

    chains: list[tuple[CollapsedGPRN, Posterior]]
    known: OutputStatistics
    inputs: np.ndarray
    fitted: FittedNetwork | None = None

    @property
    def model(self) -> CollapsedGPRN:
        """The first chain's."""
        return self.chains[0][0]

    @property
    def runs(self) -> list[dict[str, Any]]:
        """What is known of each restart; nothing without an estimator."""
        return [] if self.fitted is None else self.fitted.runs

    @property
    def best(self) -> int:
        """The chain that predictions come from."""
        return 0 if self.fitted is None else self.fitted.best_run

    def scales(self, chain: int) -> OutputScales | None:
        """The scale of each output by one of the chains, if an estimator made the fit and gave it such."""
        if self.fitted is None:
            return None
        return self.fitted.output_scales if chain == self.best else self.fitted.learn_scales(*self.chains[chain])

    @classmethod
    def of(cls, source: Any) -> PosteriorSource:
        """:param source: a fitted regressor, ``(model, guide)``, ``(model, mcmc)`` or ``(model, draws)``."""
        if isinstance(source, GPRNRegressor):
            if not hasattr(source, "fitted_"):
                raise ValueError("the regressor is not fitted yet: call fit first")
            return cls._of_fit(source.fitted_)
        if not (isinstance(source, tuple) and len(source) == 2):
            raise ValueError(
                "diagnostics take a fitted GPRNRegressor, (model, guide), (model, mcmc) or (model, draws); got"
                f" {type(source).__name__}"
            )
        model, posterior = source
        _check_collapsed(model)
        chains: list[tuple[CollapsedGPRN, Posterior]] = [(model, posterior)]
        if isinstance(posterior, MCMC):
            draws = posterior.get_samples(group_by_chain=True)
            chains = [(model, {name: each[i] for name, each in draws.items()}) for i in range(len(draws["v"]))]
        return cls(chains, model.statistics(), model.X.cpu().numpy())

    @classmethod
    def _of_fit(cls, fitted: FittedNetwork) -> PosteriorSource:
        _check_collapsed(fitted.model)
        chains = []
        for number in range(len(fitted.runs)):
            model, guide = fitted.run(number)
            model.statistics(fitted.known)
            chains.append((model, guide))
        return cls(chains, fitted.known, fitted.inputs.cpu().numpy(), fitted)

    def choose(self, outputs: Outputs, n_draws: int) -> OutputSelection:
        """The outputs asked for; by default all, or as many, evenly spread, as there is reasonable room for."""
        shape = self.model.output_shape
        if outputs is None:
            outputs = evenly_spread(shape, max(1, MOST_NUMBERS // (len(self.chains) * n_draws * len(self.inputs))))
        return OutputSelection(outputs, shape)

    def undo(self, values: Tensor, positions: Tensor) -> np.ndarray:
        """Outputs ``(…, b)`` of the model in the data's units."""
        return (values if self.fitted is None else self.fitted.scaling.undo_at(values, positions)).cpu().numpy()

    def standardise_inputs(self, X: Any) -> Tensor:
        """New inputs in the model's units."""
        read = torch.as_tensor(np.asarray(plain(X), dtype=np.float64)).to(self.model.X.device)
        return read if self.fitted is None else self.fitted.scaling.inputs(read)

    def output_dims(self) -> tuple[list[str], list[Sequence[Any]]]:
        """Names of the outputs' modes, and labels along each."""
        shape = self.model.output_shape
        names = [f"output_{m + 1}" for m in range(len(shape))] if len(shape) > 1 else ["output"]
        labels: list[Sequence[Any]] = [range(size) for size in shape]
        if self.fitted is None:
            return names, labels
        if self.fitted.present is not None:
            present = self.fitted.present.cpu().numpy()
            return names, [[str(name) for name in self.fitted.template.output_names()[present]]]
        template = self.fitted.template
        if template.library == "pandas" and len(shape) == 1:
            labels = [[str(name) for name in template.output_names()]]
        if template.library == "xarray" and template.shape == tuple(shape):
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
