"""Predictions at new inputs.

At new inputs X*, with ``A = k*ᵀK⁻¹`` (one for w, one for f), the posteriors of weights and functions are::

    E[W*] = A_w 𝒰      Cov = (κ_w(X*,X*) − A_w k_w*) ⊗ I         + (A_w Γ_1 A_wᵀ) ⊗ Γ_2 ⊗ … ⊗ Γ_{M+2}
    E[f*] = A_f M      Cov = (κ_f(X*,X*) + σ_f² I − A_f k_f*) ⊗ I + (A_f Σ A_fᵀ) ⊗ Ω

The prior's residual spreads over the identity, the posterior's part over the posterior's factors. Given f* the
outputs are Gaussian, since the weights are; everything below rests on that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from pyro import poutine
from pyro.contrib.gp.kernels import Kernel
from torch import Size, Tensor
from torch.distributions import Normal

from pyro_gprn.checks import check_inputs
from pyro_gprn.distributions import MatrixNormal, TensorNormal
from pyro_gprn.factors import Identity
from pyro_gprn.guides import KroneckerGuide
from pyro_gprn.handlers import AtCentre
from pyro_gprn.linalg import along_mode, covariance_root
from pyro_gprn.model import GPRN
from pyro_gprn.selection import Outputs, OutputSelection

#: How many numbers an intermediate array of one block of outputs may hold.
BLOCK_NUMBERS = 2**22


class PosteriorPredictive:
    """Outputs at new inputs, given the data: mean, variance, joint draws and log density.

    Work goes block by block over the outputs: no array but a result has both N* and D in it. Each method takes
    ``outputs``, a choice among them, and computes no others: for one output mode an int, a slice or a sequence
    of ints; for several a tuple with one of these for each mode. Gradients flow to ``X_new`` if it requires
    them (not through draws).

    :param model: the model.
    :param guide: its posterior, trained.
    :param X_new: ``(N*, P)``.
    :param Y: the data, which a guide with ``mean="projected"`` needs if it has not seen them.

    Hyperparameters with priors stand at the centre of their guide.

    >>> X = torch.linspace(0, 1, 8)[:, None]
    >>> model = GPRN(X, output_shape=(20, 30), n_latents=2)
    >>> predictive = PosteriorPredictive(model, KroneckerGuide(model), X[:5] + 0.05, Y=torch.ones(8, 20, 30))
    >>> predictive.mean().shape, predictive.variance(outputs=(3, slice(0, 10))).shape
    (torch.Size([5, 20, 30]), torch.Size([5, 10]))
    >>> predictive.sample(7, outputs=(3, [4, 5])).shape
    torch.Size([7, 5, 2])
    """

    def __init__(self, model: GPRN, guide: KroneckerGuide, X_new: Tensor, Y: Tensor | None = None) -> None:
        self.X_new = check_inputs(X_new, n_columns=model.X.shape[1], name="X_new").to(model.X.device)
        self.output_shape = model.output_shape
        with self._gradients(), poutine.block(), AtCentre():
            model.guided(lambda: self._condition(model, guide, Y))

    def _condition(self, model: GPRN, guide: KroneckerGuide, Y: Tensor | None) -> None:
        q_f, self._q_w = guide.posterior(Y)
        prior_f, prior_w = model.prior()
        at_new = _AtNewInputs.of(model.kernel_f, model.X, self.X_new, prior_f, q_f)
        self._f = _Functions(at_new.add_noise(model.noise_f), q_f)
        self._w = _AtNewInputs.of(model.kernel_w, model.X, self.X_new, prior_w, self._q_w)
        self._w_columns = self._q_w.factors[1].covariance()
        self._noise_variance = model.noise_y.square()

    def mean(self, outputs: Outputs = None) -> Tensor:
        """``E[y*]``, ``(N*, …)``: exact."""
        chosen = OutputSelection(outputs, self.output_shape)
        with self._gradients():
            result = self._empty(chosen)
            for block in self._blocks(chosen):
                result[:, block] = torch.einsum("nk,nkd->nd", self._f.mean, self._mean_weights(chosen, block))
            return chosen.reshape(result)

    def variance(self, outputs: Outputs = None, *, noise: bool = True) -> Tensor:
        """``Var[y*]``, ``(N*, …)``: exact. Without the observation noise if ``noise`` is False."""
        # Var = tr(E[wwᵀ] E[ffᵀ]) − (w̄ᵀf̄)² + σ_y² = w̄ᵀCov(f)w̄ + tr(Cov(w) E[ffᵀ]) + σ_y²
        chosen = OutputSelection(outputs, self.output_shape)
        with self._gradients():
            f_covariance = self._f.covariance()
            f_squared = f_covariance + self._f.mean.unsqueeze(-1) * self._f.mean.unsqueeze(-2)
            weights_variance = self._weights_variance(f_squared, chosen, noise)
            result = self._empty(chosen)
            for block in self._blocks(chosen):
                w = self._mean_weights(chosen, block)
                result[:, block] = (w * (f_covariance @ w)).sum(1) + weights_variance(block)
            return chosen.reshape(result)

    @torch.no_grad()
    def sample(self, n_draws: int, outputs: Outputs = None, *, noise: bool = True) -> Tensor:
        """Draws of y*, joint over inputs and outputs, ``(n_draws, N*, …)``."""
        chosen = OutputSelection(outputs, self.output_shape)
        functions = self._f.sample(n_draws)
        result = self._empty(chosen, n_draws)
        for block in self._blocks(chosen, n_draws):
            result[..., block] = torch.einsum("snk,nkd->snd", functions, self._mean_weights(chosen, block))
        at_once = max(1, BLOCK_NUMBERS // result[0].numel())
        for draws, f in zip(result.split(at_once), functions.split(at_once), strict=True):
            draws += self._sample_deviation(f, chosen)
            if noise:
                draws += chosen.gather(self._noise_variance).sqrt() * torch.randn_like(draws)
        return chosen.reshape(result)

    @torch.no_grad()
    def log_density(self, Y_new: Tensor, outputs: Outputs = None, *, n_draws: int = 200) -> Tensor:
        """``log p(y*_nd | data)`` of each new output on its own, ``(N*, …)``.

        The average, over ``n_draws`` of f*, of the Gaussian of y* given f*.

        :param Y_new: the new outputs, or the chosen ones of them, ``(N*, …)``.
        """
        chosen = OutputSelection(outputs, self.output_shape)
        expected = Size((len(self.X_new),)) + chosen.shape
        if Y_new.shape != expected:
            raise ValueError(f"Y_new must have shape {tuple(expected)}; got {tuple(Y_new.shape)}")
        functions = self._f.sample(n_draws)
        variance = self._weights_variance(functions.unsqueeze(-1) * functions.unsqueeze(-2), chosen, noise=True)
        y = Y_new.reshape(len(self.X_new), chosen.size).to(functions.dtype)
        result = self._empty(chosen)
        for block in self._blocks(chosen, n_draws):
            mean = torch.einsum("snk,nkd->snd", functions, self._mean_weights(chosen, block))
            by_draw = Normal(mean, variance(block).sqrt(), validate_args=False).log_prob(y[:, block])
            result[:, block] = by_draw.logsumexp(0) - math.log(n_draws)
        return chosen.reshape(result)

    def _mean_weights(self, chosen: OutputSelection, block: slice) -> Tensor:
        """``E[W*]`` of a block of the chosen outputs, ``(N*, K, b)``."""
        return self._q_w.combine_rows(self._w.interpolate, chosen.positions(block))

    def _weights_variance(self, f_squared: Tensor, chosen: OutputSelection, noise: bool) -> Callable[[slice], Tensor]:
        """``tr(Cov(w_nd) ffᵀ) [+ σ_d²]`` of a block of outputs, ``(…, N*, b)``; ``f_squared`` is ``(…, N*, K, K)``."""
        by_residual = self._w.residual.diagonal().clamp(min=0.0) * f_squared.diagonal(dim1=-2, dim2=-1).sum(-1)
        by_spread = self._w.spread.diagonal() * (f_squared * self._w_columns).sum((-2, -1))
        of_outputs = chosen.variances(self._q_w.factors[2:])
        of_noise = chosen.gather(self._noise_variance) if noise else self._noise_variance.new_zeros(())

        def of_block(block: slice) -> Tensor:
            added = of_noise if of_noise.dim() == 0 else of_noise[block]
            return by_residual.unsqueeze(-1) + by_spread.unsqueeze(-1) * of_outputs[block] + added

        return of_block

    def _sample_deviation(self, f: Tensor, chosen: OutputSelection) -> Tensor:
        """Draws of ``Σ_k f_k (W* − E[W*])_k``, ``(s, N*, size)``, given draws ``f``, ``(s, N*, K)``."""
        # Over inputs its covariance is, for the residual, R_w ∘ ffᵀ, and for the posterior, (A_wΓ_1A_wᵀ) ∘ fΓ_2fᵀ
        residual = self._w.residual * (f @ f.mT)
        spread = self._w.spread * (f @ self._w_columns @ f.mT)
        factors = chosen.factors(self._q_w.factors[2:])
        shape = (*f.shape[:2], chosen.size)
        if all(isinstance(factor, Identity) for factor in factors):
            return covariance_root(residual + spread) @ _noise(f, shape)
        deviation = covariance_root(spread) @ _noise(f, shape)
        deviation = deviation.reshape(*shape[:2], *(factor.size for factor in factors))
        for mode, factor in enumerate(factors):
            deviation = along_mode(factor.multiply, deviation, mode, len(factors))
        return deviation.flatten(2) + covariance_root(residual) @ _noise(f, shape)

    def _blocks(self, chosen: OutputSelection, n_draws: int = 1) -> Iterator[slice]:
        widest = max(len(self.X_new) * max(self._w_columns.shape[0], n_draws), self._w.interpolate.shape[1])
        return chosen.blocks(max(1, BLOCK_NUMBERS // widest))

    def _empty(self, chosen: OutputSelection, *n_draws: int) -> Tensor:
        return self._f.mean.new_empty(*n_draws, len(self.X_new), chosen.size)

    def _gradients(self) -> torch.set_grad_enabled:
        return torch.set_grad_enabled(self.X_new.requires_grad)


class _AtNewInputs(NamedTuple):
    """A posterior over rows of training inputs, carried over to new inputs."""

    interpolate: Tensor  #: A = k*ᵀK⁻¹, (N*, N)
    residual: Tensor  #: κ(X*,X*) − A k*, (N*, N*)
    spread: Tensor  #: A Γ Aᵀ with Γ the posterior's row covariance, (N*, N*)

    @classmethod
    def of(cls, kernel: Kernel, X: Tensor, X_new: Tensor, prior: TensorNormal, posterior: TensorNormal) -> _AtNewInputs:
        # With K = LLᵀ and T = L⁻¹k*:  A = TᵀL⁻¹,  A k* = TᵀT
        L = prior.factors[0].dense()
        T = torch.linalg.solve_triangular(L, kernel(X, X_new), upper=False)
        interpolate = torch.linalg.solve_triangular(L, T.mT, upper=False, left=False)
        root = interpolate @ posterior.factors[0].dense()
        return cls(interpolate, kernel(X_new) - T.mT @ T, root @ root.mT)

    def add_noise(self, scale: Tensor) -> _AtNewInputs:
        """With fresh noise of standard deviation ``scale`` at every new input."""
        return self._replace(residual=self.residual + torch.diag_embed(scale.square().expand(len(self.residual))))


class _Functions:
    """The latent functions at new inputs: their mean ``(N*, K)``, covariances and draws."""

    def __init__(self, at_new: _AtNewInputs, q_f: MatrixNormal) -> None:
        self.mean = at_new.interpolate @ q_f.loc
        self._at_new = at_new
        self._columns = q_f.factors[1]

    def covariance(self) -> Tensor:
        """Of each row on its own, ``(N*, K, K)``."""
        columns = self._columns.covariance()
        residual = self._at_new.residual.diagonal()[:, None, None] * torch.eye(len(columns)).to(columns)
        return residual + self._at_new.spread.diagonal()[:, None, None] * columns

    def sample(self, n_draws: int) -> Tensor:
        """Joint over inputs, ``(n_draws, N*, K)``."""
        shape = (n_draws, *self.mean.shape)
        residual = covariance_root(self._at_new.residual) @ _noise(self.mean, shape)
        spread = covariance_root(self._at_new.spread) @ _noise(self.mean, shape) @ self._columns.dense().mT
        return self.mean + residual + spread


def _noise(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, dtype=like.dtype, device=like.device)
