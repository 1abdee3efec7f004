"""The Gaussian process regression network with its weights integrated out, as a Pyro model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.contrib.gp.kernels import Kernel, Sum
from pyro.distributions import TorchDistribution
from pyro.nn import pyro_method
from torch import Tensor
from torch.nn import Parameter

from pyro_gprn.algebra.linalg import safe_cholesky
from pyro_gprn.algebra.tensor_normal import MatrixNormal
from pyro_gprn.collapsed.inducing import (
    LowRankCovariances,
    at_rows,
    choose_inducing,
    shared_rows,
    with_noise_at_rows,
)
from pyro_gprn.collapsed.likelihood import CollapsedNormal, output_covariance
from pyro_gprn.collapsed.low_rank_normal import LowRankNormal
from pyro_gprn.network.base import Network
from pyro_gprn.network.checks import check_effective_outputs, check_outputs
from pyro_gprn.network.hyperparameters import for_each_draw
from pyro_gprn.network.kernels import hold_scale, parts, plus_constant
from pyro_gprn.network.own_kernels import own_kernels as make_own_kernels
from pyro_gprn.outputs.compressed import CompressedStatistics
from pyro_gprn.outputs.gram import OutputStatistics, StatisticsMemory

#: Variance of the constant in the weights' kernel before training.
OFFSET = 0.01
#: Relative jitter. It is the floor under the error of a noise-free emulator: independent GPs had 1.3 to 2.4 times the
#: error on six smooth fields with 1e-10; with 1e-14 rounding led training astray.
JITTER = 1e-12


class Covariances(NamedTuple):
    """What the hyperparameters make of the training inputs."""

    Lf: Tensor  #: Cholesky factor of K_f̂, (N, N)
    Kw: Tensor  #: kernel matrix of the weights, (N, N), or of each output's weights, (D, N, N)
    noise: Tensor  #: σ_y², (), or of each output, (D,)


class CollapsedGPRN(Network):
    """Gaussian process regression network without its weights, which Gaussians let us integrate out::

        V ~ Normal(0, I)                                   site "v", (N, K)
        F = L_f V          so F ~ MatrixNormal(0, K_f̂, I)    site "f", deterministic
        y_d ~ Normal(0, K_w ∘ (F Fᵀ) + σ_y² I)               site "y", (N, d_1, …, d_M), every output d alike

    What is left to infer is V, N·K numbers, and the hyperparameters; whitened, so that the two do not fight. Works
    with :class:`~pyro.infer.SVI` and any guide for "v" (:class:`~pyro_gprn.CollapsedGuide`, Pyro's ``AutoDelta``), with
    ``MCMC(NUTS(model))`` and with ``Predictive``; :func:`~pyro_gprn.fit_collapsed` trains it without tuning. A step
    costs a few N×N Cholesky factorisations, whatever D is. For the same q(F) the bound is at least as tight as the
    paper's.

    A kernel that is asked for by name gets a constant: κ_f = κ + 1 and κ_w = b κ + a, so that a function and a weight
    may each stay away from zero everywhere. Two models of old are limits: independent GPs, where the functions are
    constant and a = 0, and the linear model of coregionalisation, its loadings integrated out, where b = 0. A Pyro
    kernel is taken as it is.

    The parameters are those of :class:`~pyro_gprn.GPRN`, with one ``noise_y``, and:

    :param effective_outputs: how many independent outputs the D outputs are worth: the log-likelihood is multiplied by
        ``effective_outputs / D``. None is D, the model as it stands. Neighbouring points of a field are no independent
        evidence, and counting them as such makes F overfit; ``"auto"`` reads the number off the Gram matrix when
        :func:`~pyro_gprn.fit_collapsed` trains the model.
    :param own_kernels: True gives each output a kernel κ_w and a noise σ_y of its own, which start alike; the functions
        are shared. Independent GPs with a kernel each are then the limit. For few outputs that have units of their
        own: a step costs a Cholesky factor for each output. Hyperparameters of the weights have a leading dimension
        of outputs, D, and so has ``noise_y``.
    :param inducing: for thousands of rows and more: how many inducing inputs Z, m of them, stand for all rows, or Z
        itself, ``(m, P)``. "v" is then ``(m, K)``, the whitened functions at Z, and "y" is scored by a lower bound of
        its log density (collapsed/low_rank.py), so that a bound stays a bound. A step costs O(N (mK)²), and no array is
        N×N. With Z = X it is the exact network, as it is with None.
    :param train_inducing: True makes Z a parameter that training moves.

    NaN in Y is a missing output: outputs that miss the same rows share one Cholesky factor.

    >>> import torch
    >>> X = torch.linspace(0, 1, 8)[:, None]
    >>> CollapsedGPRN(X, output_shape=(4, 3), n_latents=2)().shape
    torch.Size([8, 4, 3])
    >>> model = CollapsedGPRN(X, output_shape=3, n_latents=2, own_kernels=True)
    >>> model.kernel_w(X).shape, model.noise_y.shape
    (torch.Size([3, 8, 8]), torch.Size([3]))
    >>> many = CollapsedGPRN(torch.linspace(0, 1, 500)[:, None], output_shape=3, n_latents=2, inducing=20)
    >>> many.Z.shape, many.prior().event_shape
    (torch.Size([20, 1]), torch.Size([20, 2]))
    """

    Z: Tensor | None  #: inducing inputs, (m, P); None if there are none

    def __init__(
        self,
        X: Tensor,
        output_shape: int | Sequence[int],
        n_latents: int,
        *,
        effective_outputs: float | Literal["auto"] | None = None,
        jitter: float | None = None,
        own_kernels: bool = False,
        inducing: int | Tensor | None = None,
        train_inducing: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(X, output_shape, n_latents, jitter=JITTER if jitter is None else jitter, **settings)
        self.own_kernels = own_kernels
        if own_kernels:
            self.kernel_w = make_own_kernels(self.kernel_w, self.n_outputs, "kernel_w")
            self.noise_y = self.noise_y.detach().expand(self.output_shape).flatten()
            self.double().to(self.X.device)
        if self.noise_y.dim() > 0 and not own_kernels:
            raise ValueError(
                "CollapsedGPRN needs one noise_y for all outputs; standardise them, use own_kernels=True for few"
                " outputs, or GPRN"
            )
        self.effective_outputs = check_effective_outputs(effective_outputs, self.n_outputs)
        self._statistics = StatisticsMemory(OutputStatistics.of if inducing is None else CompressedStatistics.of)
        self._set_inducing(inducing, train_inducing)

    def _set_inducing(self, inducing: int | Tensor | None, is_trained: bool) -> None:
        if inducing is not None and self.own_kernels:
            raise ValueError("inducing inputs are for outputs that share a kernel; got inducing and own_kernels=True")
        if inducing is None and is_trained:
            raise ValueError("train_inducing=True needs inducing inputs; got inducing=None")
        Z = None if inducing is None else choose_inducing(self.X, inducing).clone()
        if Z is not None and is_trained:
            self.Z = Parameter(Z)
        else:
            self.register_buffer("Z", Z)
        self._shared: tuple[Any, tuple[Tensor, Tensor]] | None = None

    @property
    def has_inducing(self) -> bool:
        """True if inducing inputs stand for the rows."""
        return self.Z is not None

    @property
    def function_inputs(self) -> Tensor:
        return self.X if self.Z is None else self.Z

    @property
    def n_values(self) -> int:
        """How many values "v" has of each function: N, or m with inducing inputs."""
        return len(self.function_inputs)

    def as_function_kernel(self, kernel: Kernel) -> Kernel:
        # The constant lets a function stay away from zero where there are no data: a higher bound in 16 of 16 trials.
        for part in parts(kernel):
            if hasattr(part, "lengthscale"):
                part.lengthscale = part.lengthscale.detach() * part.input_dim**0.5
        return Sum(hold_scale(kernel), 1.0)

    def as_weight_kernel(self, kernel: Kernel) -> Kernel:
        # A weight may be the same everywhere: then F alone carries the signal, and a hole is filled by other outputs.
        return plus_constant(kernel, OFFSET)

    @property
    def likelihood_power(self) -> float:
        """``ρ = effective_outputs / D``, the power to which the likelihood is raised."""
        if self.effective_outputs == "auto":
            raise ValueError(
                "effective_outputs='auto' is read off the data by fit_collapsed; call that, or give a number"
            )
        return 1.0 if self.effective_outputs is None else self.effective_outputs / self.n_outputs

    def exact_at(self, rows: Tensor) -> CollapsedGPRN:
        """A copy of the model for some of the rows, ``(n,)``, without inducing inputs."""
        model = copy.deepcopy(self)
        del model.Z
        model.register_buffer("Z", None)
        model.X, model._statistics = self.X[rows], StatisticsMemory()
        return model

    def statistics(self, Y: Any = None) -> OutputStatistics:
        """Gram statistics of the data (a tensor, a source of outputs, statistics), or of the last data for None.

        With ``own_kernels`` each output is a group of its own. With inducing inputs they are of the kind for very many
        rows; statistics of the other kind are made anew from their source.
        """
        if isinstance(Y, Tensor):
            Y, _ = check_outputs(Y, None, self.n_rows, self.output_shape)
        if isinstance(Y, OutputStatistics) and isinstance(Y, CompressedStatistics) != self.has_inducing:
            Y = Y.source
        known = self._statistics.of(Y)
        return known.by_output if self.own_kernels else known

    @pyro_method
    def covariances(self) -> Covariances | LowRankCovariances:
        """``L_f``, ``K_w`` and ``σ_y²`` at the hyperparameters' current (or drawn) values.

        With inducing inputs, what these make of the rows, see
        :class:`~pyro_gprn.collapsed.inducing.LowRankCovariances`.
        """
        if self.Z is None:
            return Covariances(self.functions_factor(), *self.weights_and_noise())
        noise_f, shared = self.noise_f.square(), self._shared_rows()
        functions = with_noise_at_rows(self.kernel_f, self.X, self.Z, self.functions_factor(), noise_f, shared)
        weights = at_rows(self.kernel_w, self.X, self.Z, self.weights_factor())
        return LowRankCovariances(*functions, *weights, self.noise_y.square())

    def weights_factor(self) -> Tensor:
        """The Cholesky factor of ``κ_w(Z, Z)`` at the inducing inputs, ``(m, m)``; a batch of them under a plate."""
        Kw = for_each_draw(self.kernel_w, lambda: self.kernel_w(self.function_inputs))
        return safe_cholesky(Kw, jitter=self.jitter, name="the kernel matrix of w at inducing inputs")

    def _shared_rows(self) -> tuple[Tensor, Tensor]:
        """The rows that are inducing inputs, and which; none where these move."""
        assert self.Z is not None
        if self.Z.requires_grad:
            nothing = torch.zeros(0, dtype=torch.long, device=self.X.device)
            return nothing, nothing
        state = [(id(each), each._version) for each in (self.X, self.Z)]
        if self._shared is None or self._shared[0] != state:
            self._shared = state, shared_rows(self.X, self.Z)
        return self._shared[1]

    @pyro_method
    def weights_and_noise(self) -> tuple[Tensor, Tensor]:
        """``K_w``, ``(N, N)``, and ``σ_y²``, ``()``, alone: all that is left where F is the constant 1.

        With ``own_kernels`` they are ``(D, N, N)`` and ``(D,)``. Under a plate each has its batch before these.
        """
        noise = self.noise_y.square()
        if self.own_kernels and self.own_shape("noise_y") == ():  # one for all of them
            noise = noise.unsqueeze(-1).expand(*noise.shape, self.n_outputs)
        return self.kernel_matrix(self.kernel_w), noise

    def output_covariance(self, F: Tensor, Kw: Tensor, noise: Tensor) -> Tensor:
        """``C_F = K_w ∘ (F Fᵀ) + σ_y² I``, ``(*batch, N, N)`` for F ``(*batch, N, K)``, with the jitter's share.

        With ``own_kernels`` it is ``(*batch, D, N, N)``.
        """
        return output_covariance(F, Kw, noise, self.jitter, by_group=self.own_kernels)

    def prior(self) -> MatrixNormal:
        """``p(V)``, white."""
        return MatrixNormal(self.X.new_zeros(self.n_values, self.n_latents), None, None)

    def forward(self, Y: Tensor | None = None) -> Tensor:
        known = None
        if Y is not None:
            Y, _ = check_outputs(Y, None, self.n_rows, self.output_shape)
            known = self.statistics(Y)
        self._load_pyro_samples()  # hyperparameters first, as in the guides
        covariances = self.covariances()
        v = pyro.sample("v", self.prior())
        f = pyro.deterministic("f", covariances[0] @ v, event_dim=2)
        likelihood: TorchDistribution
        if isinstance(covariances, LowRankCovariances):
            likelihood = LowRankNormal(v, covariances, self.output_shape, known)
        else:
            covariance = self.output_covariance(f, covariances.Kw, covariances.noise)
            likelihood = CollapsedNormal(covariance, self.output_shape, known, by_output=self.own_kernels)
        with poutine.scale(scale=1.0 if known is None else self.likelihood_power):
            return pyro.sample("y", likelihood, obs=Y)
