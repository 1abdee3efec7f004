"""A network with constant weights, its functions integrated out, as a Pyro model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.contrib.gp.kernels import Constant, Kernel
from pyro.nn import pyro_method
from torch import Tensor

from pyro_gprn.algebra.linalg import add_to_diagonal, identity_like, safe_cholesky
from pyro_gprn.network.base import Network
from pyro_gprn.network.checks import check_outputs
from pyro_gprn.network.kernels import hold_scale
from pyro_gprn.network.own_kernels import own_kernels
from pyro_gprn.outputs.gram import OutputStatistics, StatisticsMemory

#: A model may have this many numbers, N·D: its Cholesky factor has so many rows.
MOST_NUMBERS = 20_000
#: Relative jitter on the diagonal of the covariance of all outputs.
JITTER = 1e-10
#: What that covariance is called in warnings and errors.
COVARIANCE = "the covariance of all outputs in all rows"


class CoregionalisedGPRN(Network):
    """Gaussian process regression network whose weights are the same at all inputs; its functions are integrated out::

        w_kd ~ Normal(0, 1)                               site "w", (K, D)
        f̂_k ~ GP(0, κ_k + σ_f² δ)                          each function with a kernel of its own
        y_nd ~ Normal(o_d + Σ_k w_kd f̂_nk, σ_d²)            site "y", those observed as one vector

    The offset o_d ~ Normal(0, 1) of an output is needed even though outputs are centred: where one has a hole, it is
    centred by other rows than the others. With functions and offsets integrated out, all N·D numbers are one Gaussian::

        Cov[y_nd, y_me] = Σ_k w_kd w_ke (κ_k(x_n, x_m) + σ_f² δ_nm) + δ_de + σ_d² δ_nm δ_de

    This is the linear model of coregionalisation of geostatistics. Beside it, :class:`~pyro_gprn.CollapsedGPRN`
    integrates the weights out and approximates the posterior of the functions, which suits many outputs: they tell the
    functions. A few outputs do not tell N·K numbers, but they have only K·D weights. Here these are points, and
    everything else is exact, at the cost of a Cholesky factor of size N·D.

    Works with ``SVI``, ``NUTS`` and ``Predictive``; :func:`~pyro_gprn.coregionalised.fit_coregionalised` trains it.

    :param X: inputs, ``(N, P)``.
    :param output_shape: ``(d_1, …, d_M)``.
    :param n_latents: K, how many functions.
    :param kernel_f: the kernel of which each function has its own, by name or a Pyro kernel.
    :param noise_f: ``σ_f``. This noise belongs to the input: all outputs of a row see the same.
    :param noise_y: ``σ_d``, one number to start from, or one for each output.
    :param jitter: relative to the mean variance.

    NaN in Y is a missing output.

    >>> X = torch.linspace(0, 1, 8)[:, None]
    >>> model = CoregionalisedGPRN(X, output_shape=3, n_latents=2)
    >>> model().shape, model.kernel_f(X).shape, model.noise_y.shape
    (torch.Size([8, 3]), torch.Size([2, 8, 8]), torch.Size([3]))
    """

    def __init__(
        self,
        X: Tensor,
        output_shape: int | Sequence[int],
        n_latents: int,
        *,
        kernel_f: Kernel | str | None = None,
        noise_f: float | Tensor = 0.01,
        noise_y: float | Tensor = 0.1,
        jitter: float = JITTER,
    ) -> None:
        weights = hold_scale(Constant(torch.as_tensor(X).shape[-1]))
        super().__init__(
            X,
            output_shape,
            n_latents,
            kernel_f=kernel_f,
            kernel_w=weights,
            noise_f=noise_f,
            noise_y=noise_y,
            jitter=jitter,
        )
        if self.n_rows * self.n_outputs > MOST_NUMBERS:
            raise ValueError(
                f"a coregionalised network has a Cholesky factor of size N·D, for which at most {MOST_NUMBERS:,} will"
                f" do; got N = {self.n_rows:,} and D = {self.n_outputs:,}. For many outputs use CollapsedGPRN,"
                " inference='collapsed'."
            )
        self.kernel_f = hold_scale(own_kernels(self.kernel_f, self.n_latents, "kernel_f"))
        self.noise_y = self.noise_y.detach().expand(self.output_shape).flatten()
        self.double().to(self.X.device)
        self._statistics = StatisticsMemory()

    def as_function_kernel(self, kernel: Kernel) -> Kernel:
        return kernel  # of which each function gets its own: the scale is held there

    def statistics(self, Y: Any = None) -> OutputStatistics:
        """Statistics of the data (a tensor, a source of outputs, statistics), or of the last data for None."""
        if isinstance(Y, Tensor):
            Y, _ = check_outputs(Y, None, self.n_rows, self.output_shape)
        return self._statistics.of(Y)

    def prior(self) -> dist.Normal:
        """``p(W)``, over ``(K, D)``."""
        zeros = self.X.new_zeros(self.n_latents, self.n_outputs)
        return dist.Normal(zeros, self.kernel_w(self.X[:1], diag=True).sqrt()).to_event(2)

    @pyro_method
    def function_covariances(self) -> Tensor:
        """``κ_k(X, X) + σ_f² I`` of each function, ``(K, N, N)``."""
        return add_to_diagonal(self.kernel_matrix(self.kernel_f), self.noise_f.square())

    def with_offset_weights(self, w: Tensor) -> Tensor:
        """Weights ``(…, K, D)`` with those of the offsets, which are D further functions: ``(…, K + D, D)``."""
        offsets = identity_like(self.n_outputs, w)
        return torch.cat([w, offsets.expand(*w.shape[:-2], *offsets.shape)], dim=-2)

    def with_offset_kernels(self, kernels: Tensor) -> Tensor:
        """Kernels of the functions, ``(K, *shape)``, with those of the offsets, which are constant: ``(K + D, …)``."""
        return torch.cat([kernels, kernels.new_ones(self.n_outputs, *kernels.shape[1:])])

    @pyro_method
    def output_covariance(self, w: Tensor) -> Tensor:
        """The covariance of all outputs in all rows, ``(D·N, D·N)``, the rows of the first output first.

        :param w: the weights, ``(K, D)``.
        """
        size = self.n_outputs * self.n_rows
        w, kernels = self.with_offset_weights(w), self.with_offset_kernels(self.function_covariances())
        C = torch.einsum("...kd,...ke,knm->...dnem", w, w, kernels).reshape(*w.shape[:-2], size, size)
        noise = self.noise_y.square().repeat_interleave(self.n_rows)
        return C + torch.diag_embed(noise + self.jitter * C.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True))

    def forward(self, Y: Tensor | None = None) -> Tensor:
        self._load_pyro_samples()  # hyperparameters first, as in the guides
        w = pyro.sample("w", self.prior())
        C, values = self.output_covariance(w), None
        if Y is not None:
            Y, _ = check_outputs(Y, None, self.n_rows, self.output_shape)
            values = flat_outputs(Y)
            seen = ~values.isnan()
            C, values = C[..., seen, :][..., seen], values[seen]
        root = safe_cholesky(C, name=COVARIANCE)
        zero = root.new_zeros(root.shape[-1])
        y = pyro.sample("y", dist.MultivariateNormal(zero, scale_tril=root), obs=values)
        if Y is not None:
            return Y
        return y.unflatten(-1, (self.n_outputs, self.n_rows)).mT.unflatten(-1, self.output_shape)


def flat_outputs(Y: Tensor) -> Tensor:
    """Outputs ``(N, d_1, …, d_M)`` as one vector in float64, the rows of the first output first, ``(D·N,)``.

    >>> flat_outputs(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([1., 3., 2., 4.], dtype=torch.float64)
    """
    return Y.flatten(1).mT.reshape(-1).double()
