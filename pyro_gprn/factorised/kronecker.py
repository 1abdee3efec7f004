"""The paper's posterior: matrix-normal functions and tensor-normal weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints
from torch.nn import Parameter

from pyro_gprn.algebra.linalg import identity_like
from pyro_gprn.algebra.tensor_normal import MatrixNormal, TensorNormal
from pyro_gprn.factorised.guide import FactorisedGuide
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.factorised.projected import ProjectedTensorNormal


class KroneckerGuide(FactorisedGuide):
    """Kronecker-factored variational posterior of a :class:`~pyro_gprn.GPRN` (paper, equations 6 and 7)::

        q(F) = MatrixNormal(M, Σ, Ω)          q(W) = TensorNormal(𝒰, Γ_1, Γ_2, Γ_3, …, Γ_{M+2})

    Its parameters are whitened by the prior, ``M = L_f M̃``, ``𝒰 = 𝒰̃ ×_1 L_w``, and likewise the square roots of Σ
    and Γ_1. The family is the same, but its parameters have unit scale and still fit when the kernels change. It
    starts with the first latent function at the constant 1 and the others near zero, where the model is nearly that
    of independent GPs that share one kernel.

    :param model: the model whose posterior it approximates.
    :param mean: ``"projected"`` holds 𝒰 as ``B Y`` with one ``B``, (K, N, N), for all outputs. The best 𝒰 has this
        form if outputs are complete and have one noise, and then no array but Y has an output dimension.
        ``"full"`` holds all of 𝒰, N·K·D numbers, as the paper does; it takes a mask and a noise for each output.
    :param output_factors: ``"full"`` has matrices Γ_3 … Γ_{M+2} as the paper does, ``"diagonal"`` vectors,
        ``"isotropic"`` multiples of the identity. They enter the bound only through traces and
        log-determinants, so that the best full ones are isotropic: the default loses nothing.
        (The scale of isotropic factors is part of Γ_1.)
    :param init_scale: the standard deviation, in whitened units, with which all of q starts.
    :param generator: source of random numbers for the start; None uses torch's global state.

    With ``mean="projected"`` the guide must be called with the data, as :class:`~pyro.infer.SVI` does; a later call
    without data uses the same data again.

    >>> from pyro.infer import SVI
    >>> from pyro.optim import Adam
    >>> from pyro_gprn import ClosedFormELBO
    >>> X = torch.linspace(0, 1, 8)[:, None]
    >>> model = GPRN(X, output_shape=(4, 3), n_latents=2)
    >>> guide = KroneckerGuide(model)
    >>> svi = SVI(model, guide, Adam({"lr": 0.01}), ClosedFormELBO())
    >>> Y = torch.sin(3 * X)[:, :, None].expand(8, 4, 3)
    >>> svi.step(Y) > svi.step(Y)
    True
    >>> [q.event_shape for q in guide.posterior()]
    [torch.Size([8, 2]), torch.Size([8, 2, 4, 3])]
    """

    def __init__(
        self,
        model: GPRN,
        mean: Literal["projected", "full"] = "projected",
        *,
        output_factors: Literal["full", "diagonal", "isotropic"] = "isotropic",
        init_scale: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(model, mean)
        if output_factors not in ("full", "diagonal", "isotropic"):
            raise ValueError(f"output_factors must be 'full', 'diagonal' or 'isotropic'; got {output_factors!r}")
        self.output_factors = output_factors
        self._set_up_functions(init_scale, generator)
        self._set_up_weights(init_scale)

    def _set_up_functions(self, scale: float, generator: torch.Generator | None) -> None:
        N, K = self.model.n_rows, self.model.n_latents
        self.f_loc = Parameter(self.model.whitened_start(generator=generator))
        self.f_scale_row = self._triangle(N, scale)
        self.f_scale_col = self._triangle(K, 1.0)

    def _set_up_weights(self, scale: float) -> None:
        N, K = self.model.n_rows, self.model.n_latents
        self._set_up_mean()
        self.w_scale_row = self._triangle(N, scale)
        self.w_scale_col = self._triangle(K, 1.0)
        for name, size in zip(self._output_factor_names(), self.model.output_shape, strict=False):
            ones = PyroParam(self.model.X.new_ones(size), constraints.positive)
            setattr(self, name, self._triangle(size, 1.0) if self.output_factors == "full" else ones)

    def _triangle(self, size: int, scale: float) -> PyroParam:
        return PyroParam(scale * identity_like(size, self.model.X), constraints.lower_cholesky)

    def _output_factor_names(self) -> list[str]:
        if self.output_factors == "isotropic":
            return []
        return [f"w_scale_output_{m + 1}" for m in range(len(self.model.output_shape))]

    def posterior(self, Y: Any = None) -> tuple[MatrixNormal, TensorNormal]:
        """``q(F)`` over ``(N, K)`` and ``q(W)`` over ``(N, K, d_1, …, d_M)``; ``Y`` as for :meth:`statistics`."""
        prior_f, prior_w = self.model.guided(self.model.prior)
        Lf, Lw = prior_f.factors[0].dense(), prior_w.factors[0].dense()
        q_f = MatrixNormal(Lf @ self.f_loc, Lf @ self.f_scale_row, self.f_scale_col)
        factors = [Lw @ self.w_scale_row, self.w_scale_col, *self._output_scales()]
        if self.mean == "projected":
            known = self.statistics(Y)
            return q_f, ProjectedTensorNormal(Lw @ self.w_projection, known.source, known.gram, factors)
        return q_f, TensorNormal(torch.tensordot(Lw, self.w_loc, dims=1), factors)

    def _output_scales(self) -> list[Tensor | None]:
        named: list[Tensor | None] = [getattr(self, name) for name in self._output_factor_names()]
        return named or [None] * len(self.model.output_shape)

    @torch.no_grad()
    def update_mean(self, Y: Any) -> None:
        """Sets the mean of q(W) to its optimum given all else: one exact step of coordinate ascent.

        It costs O((NK)³) for each pattern of holes, and needs one noise. A few of these steps save thousands of
        gradient steps.

        :param Y: as for :meth:`statistics`.
        """
        parameter = self.w_projection if self.mean == "projected" else self.w_loc
        parameter.copy_(self._best_mean(*self._given_for_mean(Y)))
