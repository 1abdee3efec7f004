"""The methods of inference that ``inference=`` names, each with its model, its posterior and its training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_gprn.collapsed import CollapsedGPRN, CollapsedGuide, fit_collapsed
from pyro_gprn.collapsed.training import STEPS
from pyro_gprn.coregionalised import CoregionalisedGPRN, CoregionalisedGuide, fit_coregionalised
from pyro_gprn.coregionalised.training import STEPS as LBFGS_STEPS
from pyro_gprn.factorised import (
    GPRN,
    KroneckerGuide,
    MeanFieldGuide,
    MixtureGuide,
    fit_kronecker,
    fit_mean_field,
    fit_mixture,
)
from pyro_gprn.network.base import Network
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.training.fit import Fit


@dataclass(frozen=True)
class Inference:
    """A method of inference."""

    name: str  #: what ``inference=`` calls it
    model: Any  #: the class of its model
    guide: Any  #: the class of its posterior
    fit: Any  #: the function that trains both
    steps: int  #: the default number of steps
    learning_rate: float | None  #: the default learning rate; None if its training has none
    #: True if the weights are integrated out: then there are effective outputs, and starts to race.
    is_collapsed: bool = False

    @property
    def has_constant_weights(self) -> bool:
        """True if the weights are the same at all inputs, so that there is no kernel of the weights to choose."""
        return self.model is CoregionalisedGPRN

    @property
    def has_checkpoints(self) -> bool:
        """True if training writes checkpoints: it takes longer than they do."""
        return self.learning_rate is not None

    def make_model(
        self,
        X: Tensor,
        output_shape: tuple[int, ...],
        n_latents: int,
        kernel_f: Kernel | str | None,
        kernel_w: Kernel | str | None,
        effective_outputs: Any,
        own_kernels: bool = False,
        inducing: int | Tensor | None = None,
    ) -> Network:
        """An untrained model of standardised inputs ``X``, ``(N, P)``."""
        if self.has_constant_weights:
            return self.model(X, output_shape, n_latents, kernel_f=kernel_f)
        extra: dict[str, Any] = {}
        if self.is_collapsed:
            extra = {"effective_outputs": effective_outputs, "own_kernels": own_kernels, "inducing": inducing}
        return self.model(X, output_shape, n_latents, kernel_f=kernel_f, kernel_w=kernel_w, **extra)

    def train(
        self,
        model: Network,
        known: OutputStatistics,
        steps: int | None = None,
        learning_rate: float | None = None,
        **settings: Any,
    ) -> Fit:
        """Trains a model on standardised outputs; None takes the default number of steps or learning rate."""
        steps = self.steps if steps is None else steps
        if self.learning_rate is not None:
            settings["learning_rate"] = self.learning_rate if learning_rate is None else learning_rate
        return self.fit(model, known, steps=steps, **settings)


INFERENCES = {
    each.name: each
    for each in (
        Inference("collapsed", CollapsedGPRN, CollapsedGuide, fit_collapsed, STEPS, 0.08, is_collapsed=True),
        Inference("kronecker", GPRN, KroneckerGuide, fit_kronecker, 1000, 0.03),
        Inference("mean-field", GPRN, MeanFieldGuide, fit_mean_field, 300, 0.05),
        Inference("mixture", GPRN, MixtureGuide, fit_mixture, 1000, 0.03),
        Inference("coregionalised", CoregionalisedGPRN, CoregionalisedGuide, fit_coregionalised, LBFGS_STEPS, None),
    )
}


def inference_of(guide: Any) -> Inference:
    """The method of inference that trains a guide of this class.

    >>> import torch
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> inference_of(CollapsedGuide(model)).name
    'collapsed'
    """
    found = [each for each in INFERENCES.values() if type(guide) is each.guide]
    if not found:
        known = ", ".join(each.guide.__name__ for each in INFERENCES.values())
        raise ValueError(f"the guides that can be trained are {known}; got a {type(guide).__name__}")
    return found[0]


def find_inference(name: str) -> Inference:
    """The method of inference with a given name.

    >>> find_inference("collapsed").model.__name__
    'CollapsedGPRN'
    """
    if name not in INFERENCES:
        known = " or ".join(repr(each) for each in INFERENCES)
        raise ValueError(f"inference must be {known}; got {name!r}")
    return INFERENCES[name]
