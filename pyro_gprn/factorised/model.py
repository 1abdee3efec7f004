"""The generative model of the paper, as a Pyro model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pyro
import torch
from pyro.distributions import Normal, TorchDistribution
from pyro.nn import pyro_method
from torch import Tensor

from pyro_gprn.algebra.linalg import safe_cholesky
from pyro_gprn.algebra.tensor_normal import MatrixNormal, TensorNormal
from pyro_gprn.factorised.likelihood import NetworkNormal
from pyro_gprn.factorised.observation import Observation, check_own_forward
from pyro_gprn.network.base import Network
from pyro_gprn.network.checks import check_outputs
from pyro_gprn.pyro_state import isolated


class GPRN(Network):
    """Gaussian process regression network with shared kernels (paper, equations 1 and 2)::

        F ~ MatrixNormal(0, K_f̂, I_K)                 K_f̂ = κ_f(X, X) + σ_f² I      site "f", (N, K)
        W ~ TensorNormal(0, K_w, I_K, I_d1, …, I_dM)   K_w = κ_w(X, X)              site "w", (N, K, d_1, …, d_M)
        y_nd ~ Normal(Σ_k W_nkd F_nk, σ_y²)                                          site "y", (N, d_1, …, d_M)

    The site "y" stands in the plates "data" and "output_1" … "output_M". Everything of size N×N is float64,
    whatever X and Y are. Every hyperparameter is a ``PyroParam`` that may be replaced by a ``PyroSample`` prior.

    :param X: inputs, ``(N, P)``.
    :param output_shape: ``(d_1, …, d_M)``, or the number of outputs.
    :param n_latents: ``K``.
    :param kernel_f: kernel of the latent functions, any of ``pyro.contrib.gp.kernels`` (becomes float64), or words as
        :func:`~pyro_gprn.network.kernels.named_kernel` reads them: one length-scale for each input column, and the
        scale fixed at 1, since only the product of the scales of f and w is identified. By default ``"rbf"``.
    :param kernel_w: kernel of the weights, likewise; its scale is free.
    :param noise_f: ``σ_f``, a standard deviation.
    :param noise_y: ``σ_y``, one number, or one for each output with shape ``output_shape``.
    :param jitter: added to the diagonals of K_f̂ and K_w, relative to their means.

    For another likelihood (a Student-t, say), override :meth:`likelihood` in a subclass and train that with Pyro's
    ``TraceMeanField_ELBO``; predictions use the new likelihood too.

    Called with ``Y``, ``(N, d_1, …, d_M)`` or ``(N, D)``, the model observes it; called without, it draws outputs from
    the prior. ``mask``, of the shape of Y, is True where an output was observed.

    >>> model = GPRN(torch.linspace(0, 1, 8)[:, None], output_shape=(4, 3), n_latents=2)
    >>> model().shape
    torch.Size([8, 4, 3])
    """

    def __init__(self, X: Tensor, output_shape: int | Sequence[int], n_latents: int, **settings: Any) -> None:
        super().__init__(X, output_shape, n_latents, **settings)
        n_modes = len(self.output_shape)
        sizes = {"data": self.n_rows} | {f"output_{m}": size for m, size in enumerate(self.output_shape, 1)}
        # Made once: a plate lists its indices when it is made.
        with isolated():  # making a plate is a Pyro site, which is no business of an outer handler
            self._plates = [pyro.plate(name, size, dim=m - n_modes - 1) for m, (name, size) in enumerate(sizes.items())]

    @pyro_method
    def prior(self) -> tuple[MatrixNormal, TensorNormal]:
        """``p(F)`` and ``p(W)`` at the hyperparameters' current (or drawn) values."""
        Lf = self.functions_factor()
        Lw = safe_cholesky(self.kernel_matrix(self.kernel_w), jitter=self.jitter, name="the kernel matrix of w")
        event_shape = (self.n_rows, self.n_latents, *self.output_shape)
        prior_f = MatrixNormal(Lf.new_zeros(event_shape[:2]), Lf, None)
        prior_w = TensorNormal.centred(event_shape, [Lw] + [None] * (len(event_shape) - 1), like=Lw)
        return prior_f, prior_w

    def likelihood(self, signal: Tensor) -> TorchDistribution:
        """The distribution of the outputs given the signal ``W f``, ``(…, d_1, …, d_M)``: ``Normal(signal, σ_y²)``."""
        return Normal(signal, self.noise_y)

    @property
    def is_gaussian(self) -> bool:
        """True if the likelihood is the network's own, for which the bound is closed form."""
        return type(self).likelihood is GPRN.likelihood

    def observation(self) -> Observation:
        """The likelihood as predictions need it."""
        if type(self).forward is not GPRN.forward:
            check_own_forward(self)
        return Observation(self.likelihood, self.output_shape, self.X, self.is_gaussian)

    def forward(self, Y: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        if Y is not None:
            Y, mask = check_outputs(Y, mask, self.n_rows, self.output_shape)
        self._load_pyro_samples()  # hyperparameters first, as in the guides
        prior_f, prior_w = self.prior()
        f = pyro.sample("f", prior_f)
        w = pyro.sample("w", prior_w)
        n_plates = len(self._plates)
        likelihood = NetworkNormal(_clear(f, 2, n_plates), _clear(w, 1 + n_plates, n_plates), self.noise_y)
        if not self.is_gaussian:
            likelihood = self.likelihood(likelihood.mean)
        if Y is not None and mask is not None:
            likelihood, Y = likelihood.mask(mask), torch.where(mask, Y, 0.0)
        with ExitStack() as plates:
            for plate in self._plates:
                plates.enter_context(plate)
            return pyro.sample("y", likelihood, obs=Y)


def _clear(draw: Tensor, event_dim: int, n_plates: int) -> Tensor:
    """Drops the dimensions of size 1 that Pyro adds under an outer plate, one for each of the model's own plates."""
    for _ in range(n_plates):
        if draw.dim() > event_dim and draw.shape[-1 - event_dim] == 1:
            draw = draw.squeeze(-1 - event_dim)
    return draw
