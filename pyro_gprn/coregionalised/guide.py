"""The posterior of the weights of a coregionalised network: a point."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor
from torch.nn import Parameter

from pyro_gprn.coregionalised.model import CoregionalisedGPRN
from pyro_gprn.pyro_state import white_noise


class CoregionalisedGuide(PyroModule):
    """``q(W)``, a point, for a :class:`~pyro_gprn.coregionalised.CoregionalisedGPRN`. (Its functions are integrated
    out: given the weights their posterior is exact.)

    :param model: the model it is a posterior of.
    :param generator: of random numbers for the weights that it starts with; None is torch's global state.
    :param init_loc: the weights that it starts with instead, ``(K, D)``.

    >>> from pyro.infer import SVI, Trace_ELBO
    >>> from pyro.optim import Adam
    >>> model = CoregionalisedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=3, n_latents=2)
    >>> guide = CoregionalisedGuide(model)
    >>> loss = SVI(model, guide, Adam({"lr": 0.01}), Trace_ELBO()).step(torch.randn(8, 3))
    >>> guide.w_loc.shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        model: CoregionalisedGPRN,
        *,
        generator: torch.Generator | None = None,
        init_loc: Tensor | None = None,
    ) -> None:
        super().__init__()
        self._model = (model,)  # a tuple, so that the model is not a submodule
        if init_loc is None:
            init_loc = 0.5 * white_noise(model.n_latents, model.n_outputs, like=model.X, generator=generator)
        self.w_loc = Parameter(init_loc.contiguous())

    @property
    def model(self) -> CoregionalisedGPRN:
        """The model it is a posterior of."""
        return self._model[0]

    def forward(self, Y: Tensor | None = None) -> None:
        self.model.guided(lambda: None)  # hyperparameters with priors
        pyro.sample("w", dist.Delta(self.w_loc, event_dim=2))
