"""What diagnostics take, in one form: a fitted estimator, a model with its guide, or an MCMC run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.diagnostics.draws import chains_of
from pyro_gprn.estimator import GPRNRegressor
from pyro_gprn.estimator.containers import plain
from pyro_gprn.estimator.fitted import FittedNetwork
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import Outputs, OutputSelection, evenly_spread
from pyro_gprn.prediction.scales import Scales

#: By default at most about this many numbers (chains × draws × rows × outputs) are exported.
MOST_NUMBERS = 10_000_000


@dataclass(frozen=True)
class PosteriorSource:
    """A posterior, chain by chain, with the data and their names.

    :param chains: for each chain the model, at the chain's hyperparameters and with the data, and the posterior.
    :param known: statistics of the outputs in the model's units.
    :param inputs: training inputs in the data's units, ``(N, P)``.
    :param fitted: the record of the fit, if an estimator made it.

    >>> from pyro_gprn import CollapsedGPRN, CollapsedGuide
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> known = model.statistics(torch.ones(5, 3))
    >>> len(PosteriorSource.of((model, CollapsedGuide(model))).chains)
    1
    """

    chains: list[tuple[Any, Any]]
    known: OutputStatistics
    inputs: np.ndarray
    fitted: FittedNetwork | None = None

    @property
    def model(self) -> Any:
        """The model of the first chain."""
        return self.chains[0][0]

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The results of each restart, as in :class:`~pyro_gprn.estimator.fitted.FittedNetwork`; else an empty list."""
        return [] if self.fitted is None else self.fitted.runs

    @property
    def best(self) -> int:
        """The number of the chain with the best bound, from which predictions come."""
        return 0 if self.fitted is None else self.fitted.best_run

    def scales(self, chain: int) -> Scales | None:
        """The scale of each output by one of the chains, if an estimator made the fit and gave it such."""
        if self.fitted is None:
            return None
        return self.fitted.output_scales if chain == self.best else self.fitted.learn_scales(*self.chains[chain])

    @classmethod
    def of(cls, source: Any) -> PosteriorSource:
        """Brings what diagnostics take into this form.

        :param source: a fitted regressor, ``(model, guide)``, ``(model, mcmc)`` or ``(model, draws)``.
        """
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
        chains, known = chains_of(model, posterior)
        return cls(chains, known, model.X.cpu().numpy())

    @classmethod
    def _of_fit(cls, fitted: FittedNetwork) -> PosteriorSource:
        by_run = [chains_of(*fitted.run(number), fitted.known)[0] for number in range(len(fitted.runs))]
        return cls([chain for chains in by_run for chain in chains], fitted.known, fitted.inputs.cpu().numpy(), fitted)

    def choose(self, outputs: Outputs, n_draws: int) -> OutputSelection:
        """The selection asked for; by default all outputs, or an evenly spread selection if all are too many."""
        shape = self.model.output_shape
        if outputs is None:
            outputs = evenly_spread(shape, max(1, MOST_NUMBERS // (len(self.chains) * n_draws * len(self.inputs))))
        return OutputSelection(outputs, shape)

    def undo(self, values: Tensor, positions: Tensor) -> np.ndarray:
        """Values ``(…, b)`` of the model's outputs at some positions, in the data's units."""
        return (values if self.fitted is None else self.fitted.undo_at(values, positions)).cpu().numpy()

    def standardise_inputs(self, X: Any) -> Tensor:
        """New inputs ``(N*, P)`` in the model's units."""
        read = torch.as_tensor(np.asarray(plain(X), dtype=np.float64)).to(self.model.X.device)
        return read if self.fitted is None else self.fitted.scaling.inputs(read)

    def output_dims(self) -> tuple[list[str], list[Sequence[Any]]]:
        """The names of the outputs' modes, and the labels along each."""
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
