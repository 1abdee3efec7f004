"""What the models of this package share: inputs, kernels and noises."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyro_gprn.algebra.linalg import add_to_diagonal, safe_cholesky
from pyro_gprn.network.checks import check_inputs, check_kernel, check_n_latents, check_noise, check_output_shape
from pyro_gprn.network.hyperparameters import Hyperparameters, for_each_draw
from pyro_gprn.network.kernels import hold_scale, named_kernel
from pyro_gprn.pyro_state import white_noise


class Network(Hyperparameters):
    """Inputs, kernels and noises of a Gaussian process regression network; a ``PyroModule``.

    Everything of size N×N is float64, whatever X and Y are. Hyperparameters may have priors: see
    :class:`~pyro_gprn.network.hyperparameters.Hyperparameters`.

    The parameters are those of :class:`~pyro_gprn.GPRN`.
    """

    def __init__(
        self,
        X: Tensor,
        output_shape: int | Sequence[int],
        n_latents: int,
        *,
        kernel_f: Kernel | str | None = None,
        kernel_w: Kernel | str | None = None,
        noise_f: float | Tensor = 3e-4,
        noise_y: float | Tensor = 0.1,
        jitter: float = 1e-10,
    ) -> None:
        super().__init__()
        X = check_inputs(X)
        self.output_shape = check_output_shape(output_shape)
        self.n_latents = check_n_latents(n_latents)
        self.register_buffer("X", X)
        if isinstance(kernel_f, Kernel) and kernel_f is kernel_w:
            raise ValueError("kernel_f and kernel_w must be two kernels; got one object for both")
        kernel_f, kernel_w = ("rbf" if kernel is None else kernel for kernel in (kernel_f, kernel_w))
        if isinstance(kernel_f, str):
            kernel_f = self.as_function_kernel(named_kernel(kernel_f, X, "kernel_f"))
        if isinstance(kernel_w, str):
            kernel_w = self.as_weight_kernel(named_kernel(kernel_w, X, "kernel_w"))
        self.kernel_f = check_kernel(kernel_f, X, "kernel_f")
        self.kernel_w = check_kernel(kernel_w, X, "kernel_w")
        self.noise_f = PyroParam(check_noise(noise_f, X, (), "noise_f"), constraints.positive)
        self.noise_y = PyroParam(check_noise(noise_y, X, self.output_shape, "noise_y"), constraints.positive)
        self.jitter = jitter
        self.double().to(X.device)

    def as_function_kernel(self, kernel: Kernel) -> Kernel:
        """Prepares a kernel that was asked for by name for the latent functions: its scale is held at 1."""
        return hold_scale(kernel)

    def as_weight_kernel(self, kernel: Kernel) -> Kernel:
        """A kernel asked for by name, as the weights' kernel."""
        return kernel

    @property
    def n_rows(self) -> int:
        """The number of rows, ``N``."""
        return self.X.shape[0]

    @property
    def n_outputs(self) -> int:
        """The number of outputs, ``D = d_1 ⋯ d_M``."""
        return self.output_shape.numel()

    def kernel_matrix(self, kernel: Kernel) -> Tensor:
        """``κ(X, X)``, ``(N, N)``, for ``kernel_f`` or ``kernel_w``.

        Under a plate it is ``(*batch, N, N)`` if the kernel's hyperparameters have priors.
        """
        return for_each_draw(kernel, lambda: kernel(self.X))

    @property
    def function_inputs(self) -> Tensor:
        """The inputs at which the functions are inferred, here X, ``(N, P)``."""
        return self.X

    def functions_factor(self) -> Tensor:
        """``L_f``, the Cholesky factor of ``K_f̂ = κ_f(X, X) + σ_f² I``, ``(N, N)``; a batch of them under a plate.

        (Where the functions are inferred at other inputs, it is that of these.)
        """
        Kf = for_each_draw(self.kernel_f, lambda: self.kernel_f(self.function_inputs))
        Kf = add_to_diagonal(Kf, self.noise_f.square())
        return safe_cholesky(Kf, jitter=self.jitter, name="the kernel matrix of f")

    @torch.no_grad()
    def whitened_start(self, spread: float = 0.1, generator: torch.Generator | None = None) -> Tensor:
        """The whitened functions ``V = L_f⁻¹F``, ``(N, K)``, at which guides start.

        The first function is the constant 1 and the others are near zero. There the network is nearly that of
        independent GPs that share one kernel.

        :param spread: standard deviation of the others, whitened.
        :param generator: source of random numbers; None uses torch's global state.
        """
        L = self.at_centre(self.functions_factor)
        constant = torch.linalg.solve_triangular(L, torch.ones_like(L[:, :1]), upper=False)
        others = spread * white_noise(len(L), self.n_latents - 1, like=L, generator=generator)
        return torch.cat([constant, others], dim=1)
