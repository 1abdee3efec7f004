"""The ways to a posterior, each with its model and its training: what ``inference=`` names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_gprn.collapsed import CollapsedGPRN, CollapsedGuide, fit_collapsed
from pyro_gprn.factorised import GPRN, KroneckerGuide, fit_kronecker
from pyro_gprn.network.base import Network
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.training.fit import Fit


@dataclass(frozen=True)
class Inference:
    """One way to a posterior."""

    model: Any  #: class of the model
    guide: Any  #: class of the posterior
    fit: Any  #: its training
    steps: int  #: that it takes by default
    learning_rate: float  #: likewise
    is_collapsed: bool  #: True if the weights are integrated out: then there are effective outputs, and starts to race

    def make_model(
        self,
        X: Tensor,
        output_shape: tuple[int, ...],
        n_latents: int,
        kernel_f: Kernel | str | None,
        kernel_w: Kernel | str | None,
        effective_outputs: Any,
    ) -> Network:
        """An untrained model of standardised inputs."""
        extra = {"effective_outputs": effective_outputs} if self.is_collapsed else {}
        return self.model(X, output_shape, n_latents, kernel_f=kernel_f, kernel_w=kernel_w, **extra)

    def train(
        self,
        model: Network,
        known: OutputStatistics,
        steps: int | None = None,
        learning_rate: float | None = None,
        **settings: Any,
    ) -> Fit:
        """Trains it on standardised outputs."""
        steps = self.steps if steps is None else steps
        learning_rate = self.learning_rate if learning_rate is None else learning_rate
        return self.fit(model, known, steps=steps, learning_rate=learning_rate, **settings)


INFERENCES = {
    "collapsed": Inference(CollapsedGPRN, CollapsedGuide, fit_collapsed, 400, 0.08, True),
    "kronecker": Inference(GPRN, KroneckerGuide, fit_kronecker, 1000, 0.03, False),
}


def find_inference(name: str) -> Inference:
    """The inference of that name."""
    if name not in INFERENCES:
        known = " or ".join(repr(each) for each in INFERENCES)
        raise ValueError(f"inference must be {known}; got {name!r}")
    return INFERENCES[name]
