"""The posterior of the whitened functions of a collapsed network."""

from __future__ import annotations

import pyro
import torch
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints
from torch.nn import Parameter

from pyro_gprn.algebra.linalg import identity_like
from pyro_gprn.algebra.tensor_normal import MatrixNormal
from pyro_gprn.collapsed.model import CollapsedGPRN


class CollapsedGuide(PyroModule):
    """``q(V) = MatrixNormal(loc, R Rᵀ, T Tᵀ)`` over the whitened functions of a :class:`~pyro_gprn.CollapsedGPRN`.

    Its KL to the prior is closed form, and Pyro's ``TraceMeanField_ELBO`` takes it up. It starts with the first latent
    function at the constant 1 and the others near zero: independent GPs that share one kernel.

    :param model: the model it is a posterior of.
    :param init_scale: standard deviation that q starts with.
    :param init_latents: spread of the means of the latents beyond the first.
    :param generator: of random numbers for that; None is torch's global state.
    :param init_loc: mean of V that q starts with instead, ``(N, K)``.

    With inducing inputs the functions are those at these, and N stands for their number m.

    >>> from pyro.infer import SVI, TraceMeanField_ELBO
    >>> from pyro.optim import Adam
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=1000, n_latents=2)
    >>> guide = CollapsedGuide(model)
    >>> svi = SVI(model, guide, Adam({"lr": 0.01}), TraceMeanField_ELBO())
    >>> loss = svi.step(torch.randn(8, 1000))
    >>> guide.posterior().event_shape
    torch.Size([8, 2])
    """

    def __init__(
        self,
        model: CollapsedGPRN,
        *,
        init_scale: float = 0.1,
        init_latents: float = 0.1,
        generator: torch.Generator | None = None,
        init_loc: Tensor | None = None,
    ) -> None:
        super().__init__()
        self._model = (model,)  # a tuple, so that the model is not a submodule
        N, K = model.n_values, model.n_latents
        self.v_loc = Parameter(
            model.whitened_start(init_latents, generator) if init_loc is None else init_loc.contiguous()
        )
        self.v_scale_row = PyroParam(init_scale * identity_like(N, model.X), constraints.lower_cholesky)
        self.v_scale_col = PyroParam(identity_like(K, model.X), constraints.lower_cholesky)

    @property
    def model(self) -> CollapsedGPRN:
        return self._model[0]

    def posterior(self) -> MatrixNormal:
        """``q(V)`` over ``(N, K)``."""
        return MatrixNormal(self.v_loc, self.v_scale_row, self.v_scale_col, validate_args=False)

    @torch.no_grad()
    def set_rows(self, row: Tensor) -> None:
        """Sets ``R``, lower-triangular, ``(N, N)``."""
        self.v_scale_row_unconstrained.copy_(row.tril(-1) + torch.diag_embed(row.diagonal().log()))

    def forward(self, Y: Tensor | None = None) -> None:
        self.model.guided(lambda: None)  # hyperparameters with priors
        pyro.sample("v", self.posterior())
