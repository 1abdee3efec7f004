"""The mean-field posterior: every latent function and every weight is a Gaussian of its own."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints
from torch.nn import Parameter

from pyro_gprn.algebra.linalg import add_to_diagonal, identity_like, safe_cholesky
from pyro_gprn.factorised.column_normal import ColumnNormal, ProjectedColumnNormal
from pyro_gprn.factorised.guide import FactorisedGuide
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.factorised.posterior import output_moments

#: The least precision λ, which stands for none: it has a logarithm.
NO_PRECISION = 1e-30


class MeanFieldGuide(FactorisedGuide):
    """Mean-field posterior of a :class:`~pyro_gprn.GPRN` (Wilson et al. 2012; Nguyen and Bonilla 2013)::

        q(F) = Π_k Normal(m_k, S_k)            S_k = (K_f̂⁻¹ + diag(λ_k))⁻¹
        q(W) = Π_kd Normal(u_kd, T_k)          T_k = (K_w⁻¹ + diag(μ_k))⁻¹

    Each factor is a Gaussian over the N rows whose covariance has N parameters: the best one has this form. λ and μ are
    precisions, as if each function and each weight had been observed with noise in every row. All outputs share T_k. If
    outputs are complete and have one noise, that loses nothing, since the best covariance is the same for all of them;
    otherwise it is the best covariance for the outputs on average. Means are whitened by the prior, ``m_k = L_f m̃_k``
    and ``u_kd = L_w ũ_kd``, so that they still fit when the kernels change.

    :meth:`sweep` sets each factor in turn to its optimum given all others, in closed form, which never lowers the
    bound. SVI trains the guide as well. It starts with the first latent function at the constant 1 and the others near
    zero, where the model is nearly that of independent GPs that share one kernel.

    :param model: the model whose posterior it approximates.
    :param mean: ``"projected"`` holds ``u_kd = B_k y_d`` with one ``B``, (K, N, N), for all outputs. The best mean has
        this form if outputs are complete and have one noise, and then no array but Y has an output dimension.
        ``"full"`` holds N·K·D numbers; it takes missing outputs and a noise for each output.
    :param init_scale: the functions start with a standard deviation of at most this, λ = 1/init_scale².
    :param generator: source of random numbers for the start; None uses torch's global state.

    With ``mean="projected"`` the guide must be called with the data, as :class:`~pyro.infer.SVI` does; a later call
    without data uses the same data again.

    >>> from pyro_gprn import ClosedFormELBO
    >>> X = torch.linspace(0, 1, 8)[:, None]
    >>> model = GPRN(X, output_shape=(4, 3), n_latents=2)
    >>> guide, loss = MeanFieldGuide(model), ClosedFormELBO()
    >>> Y = torch.sin(3 * X)[:, :, None].expand(8, 4, 3)
    >>> before = loss.loss(model, guide, Y)
    >>> guide.sweep(Y)
    >>> loss.loss(model, guide, Y) < before
    True
    >>> [q.event_shape for q in guide.posterior()]
    [torch.Size([8, 2]), torch.Size([8, 2, 4, 3])]
    """

    def __init__(
        self,
        model: GPRN,
        mean: Literal["projected", "full"] = "projected",
        *,
        init_scale: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(model, mean)
        precision = model.X.new_full((model.n_rows, model.n_latents), init_scale**-2)
        self.f_loc = Parameter(model.whitened_start(generator=generator))
        self.f_precision = PyroParam(precision, constraints.positive)
        self._set_up_mean()
        self.w_precision = PyroParam(precision.clone(), constraints.positive)

    def posterior(self, Y: Any = None) -> tuple[ColumnNormal, ColumnNormal]:
        """``q(F)`` over ``(N, K)`` and ``q(W)`` over ``(N, K, d_1, …, d_M)``; ``Y`` as for :meth:`statistics`."""
        prior_f, prior_w = self.model.guided(self.model.prior)
        Lf, Lw = prior_f.factors[0].dense(), prior_w.factors[0].dense()
        q_f = ColumnNormal(Lf @ self.f_loc, _posterior_factor(Lf, self.f_precision.mT))
        return q_f, self._weights(Lw, Y)

    def _weights(self, Lw: Tensor, Y: Any) -> ColumnNormal:
        factor = _posterior_factor(Lw, self.w_precision.mT)
        if self.mean == "projected":
            known = self.statistics(Y)
            return ProjectedColumnNormal(Lw @ self.w_projection, known.source, known.gram, factor)
        return ColumnNormal(torch.tensordot(Lw, self.w_loc, dims=1), factor)

    def sweep(self, Y: Any = None) -> None:
        """Sets ``q(w_k·)`` for one latent k after another, then ``q(f_k)`` likewise, to its optimum given all others.

        No sweep lowers the bound. Hyperparameters with priors stand at the centre of their posteriors.

        :param Y: as for :meth:`statistics`; NaN is a missing output.
        """
        given = self._given(Y)
        self._set_weights(given)
        self._set_functions(given)

    def update_weights(self, Y: Any = None) -> None:
        """The first half of a :meth:`sweep`: ``q(w_k·)``, for all outputs at once, one latent k after another."""
        self._set_weights(self._given(Y))

    def update_functions(self, Y: Any = None) -> None:
        """The second half of a :meth:`sweep`: ``q(f_k)``, one latent k after another."""
        self._set_functions(self._given(Y))

    @torch.no_grad()
    def _given(self, Y: Any) -> _Given:
        values, mask = self.observed(Y)
        (prior_f, prior_w), noise = self.model.at_centre(lambda: (self.model.prior(), self.model.noise_y))
        precision = noise.square().reciprocal()
        if mask is not None:
            precision = mask * precision
        return _Given(values, precision, prior_f.factors[0].dense(), prior_w.factors[0].dense())

    @torch.no_grad()
    def _set_weights(self, given: _Given) -> None:
        # In w_kd the bound is E[−½ w_kdᵀ(K_w⁻¹ + diag(E[f_k²]/σ_d²))w_kd + w_kdᵀb_kd] + entropy, where
        #   b_kdn = m_nk (y_nd − Σ_{j≠k} m_nj E[w_njd]) / σ_d²
        # A projected mean is this with the columns of the identity in place of the outputs.
        values, precision, Lf, Lw = given
        m = Lf @ self.f_loc
        squares = m.square() + ColumnNormal(m, _posterior_factor(Lf, self.f_precision.mT)).row_variance
        if self.mean == "projected":
            targets, whitened = identity_like(len(m), m), self.w_projection.data
        else:  # (N, D) and, a view, (K, N, D)
            targets, whitened = values.flatten(1), self.w_loc.data.flatten(2).transpose(0, 1)
        precision = precision if precision.dim() == 0 else precision.expand(values.shape).flatten(1)
        signal = torch.einsum("nk,np,kpd->nd", m, Lw, whitened)
        for k in range(self.model.n_latents):
            others = signal - m[:, k, None] * (Lw @ whitened[k])
            linear = Lw.mT @ (precision * m[:, k, None] * (targets - others))
            whitened[k] = _solve_by_pattern(Lw, squares[:, k], precision, linear)
            signal = others + m[:, k, None] * (Lw @ whitened[k])
        of_all = precision if precision.dim() == 0 else precision.mean(-1, keepdim=True)
        self.w_precision = (of_all * squares).clamp(min=NO_PRECISION)

    @torch.no_grad()
    def _set_functions(self, given: _Given) -> None:
        # In f_k the bound is E[−½ f_kᵀ(K_f̂⁻¹ + diag(λ_k))f_k + f_kᵀb_k] + entropy, where
        #   λ_kn = Σ_d E[w_nkd²] / σ_d²        b_kn = Σ_d (y_nd E[w_nkd] − Σ_{j≠k} E[w_nkd]E[w_njd] m_nj) / σ_d²
        values, precision, Lf, Lw = given
        _, yw, ww = output_moments(self._weights(Lw, None), values, precision)
        f_precision = ww.diagonal(dim1=-2, dim2=-1)
        factors = safe_cholesky(_whitened_precision(Lf, f_precision.mT), name="the precision of q(F)")
        m = Lf @ self.f_loc
        for k, factor in enumerate(factors):
            linear = yw[:, k] - (ww[:, k] * m).sum(-1) + ww[:, k, k] * m[:, k]
            self.f_loc[:, k] = torch.cholesky_solve(Lf.mT @ linear.unsqueeze(-1), factor).squeeze(-1)
            m[:, k] = Lf @ self.f_loc[:, k]
        self.f_precision = f_precision.clamp(min=NO_PRECISION)


class _Given(NamedTuple):
    """What an update takes as given besides the posterior itself."""

    values: Tensor  #: the outputs, (N, d_1, …, d_M); NaN where the mean is projected, which needs none of them
    precision: Tensor  #: 1/σ², () or broadcasting to the outputs; zero where one is missing
    Lf: Tensor  #: the Cholesky factor of K_f̂, (N, N)
    Lw: Tensor  #: the Cholesky factor of K_w, (N, N)


def _whitened_precision(L: Tensor, precision: Tensor) -> Tensor:
    """``I + Lᵀ diag(λ) L``, ``(…, N, N)``, the precision of whitened values, for λ of shape ``(…, N)``."""
    return add_to_diagonal(L.mT @ (precision.unsqueeze(-1) * L), L.new_ones(()))


def _posterior_factor(L: Tensor, precision: Tensor) -> Tensor:
    """The lower Cholesky factors of ``((LLᵀ)⁻¹ + diag(λ_k))⁻¹``, ``(K, N, N)``, for λ of shape ``(K, N)``."""
    # With I + LᵀΛL = UUᵀ for an upper triangle U the covariance is (LU⁻ᵀ)(LU⁻ᵀ)ᵀ, and LU⁻ᵀ is a lower triangle. U is
    # the Cholesky factor of the matrix with rows and columns in reverse order, itself reversed.
    reversed_factor = safe_cholesky(_whitened_precision(L, precision).flip(-2, -1), name="the precision of a posterior")
    upper = reversed_factor.flip(-2, -1)
    return torch.linalg.solve_triangular(upper.mT, L.expand_as(upper), upper=False, left=False)


def _solve_by_pattern(L: Tensor, squares: Tensor, precision: Tensor, linear: Tensor) -> Tensor:
    """``(I + Lᵀ diag(E[f²]/σ_d²) L)⁻¹ b_d`` for each output d, ``(N, D)``, with one factor for outputs that share it.

    :param squares: ``E[f²]``, ``(N,)``.
    :param precision: ``1/σ_d²``, ``()`` or ``(N, D)``.
    :param linear: ``b``, ``(N, D)``.
    """
    if precision.dim() == 0:
        return torch.cholesky_solve(linear, safe_cholesky(_whitened_precision(L, precision * squares)))
    patterns, pattern_of = precision.unique(dim=1, return_inverse=True)
    solution = torch.empty_like(linear)
    for number, pattern in enumerate(patterns.unbind(1)):
        members = pattern_of == number
        factor = safe_cholesky(_whitened_precision(L, pattern * squares))
        solution[:, members] = torch.cholesky_solve(linear[:, members], factor)
    return solution
