"""Gaussians over the rows of a tensor, one for each of its columns: what mean-field posteriors are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints, register_kl

from pyro_gprn.algebra.factors import Identity, Triangular
from pyro_gprn.algebra.linalg import identity_like
from pyro_gprn.algebra.tensor_normal import TensorNormal
from pyro_gprn.outputs.source import OutputSource, as_source


class ColumnNormal(TorchDistribution):
    """Tensors ``x`` over ``(N, K, d_1, …, d_M)`` whose columns ``x_kd``, of N numbers each, are independent Gaussians::

        x_kd ~ Normal(loc_kd, S_k)          S_k = L_k L_kᵀ, the same for all d

    Functions, over ``(N, K)``, are the case without outputs.

    :param loc: mean, ``(N, K, d_1, …, d_M)``; batches come by :meth:`expand`.
    :param scale_tril: ``L_k``, lower-triangular with a positive diagonal, ``(K, N, N)``.

    >>> weights = ColumnNormal(torch.zeros(5, 2, 3), torch.stack([torch.eye(5), 2 * torch.eye(5)]))
    >>> weights.event_shape, weights.variance[0, :, 0]
    (torch.Size([5, 2, 3]), tensor([1., 4.]))
    >>> weights.rsample((7,)).shape
    torch.Size([7, 5, 2, 3])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # the factor is checked below
    has_rsample = True

    def __init__(self, loc: Tensor, scale_tril: Tensor, validate_args: bool | None = None) -> None:
        self._loc = loc
        self.set_up(scale_tril, Size(), loc.shape, validate_args)

    def set_up(
        self, scale_tril: Tensor, batch_shape: Size, event_shape: Size, validate_args: bool | None = None
    ) -> None:
        """The part of construction that subclasses share, also those that hold their mean in another form."""
        N, K = event_shape[:2] if len(event_shape) > 1 else (None, None)
        if scale_tril.shape != (K, N, N):
            raise ValueError(
                "ColumnNormal needs a loc of shape (N, K, d_1, …, d_M) and a scale_tril of shape (K, N, N); got"
                f" {tuple(event_shape)} and {tuple(scale_tril.shape)}"
            )
        self.rows = Triangular(scale_tril)  #: the factors of the columns' covariances
        super().__init__(batch_shape, event_shape, validate_args=validate_args)
        if self._validate_args and not self.rows.is_valid():
            raise ValueError("scale_tril must be lower-triangular with a positive diagonal and without NaN")

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: Sequence[int], _instance: ColumnNormal | None = None) -> ColumnNormal:
        new = self._get_checked_instance(ColumnNormal, _instance)
        new._loc = self.loc.expand(Size(batch_shape) + self.event_shape)
        new.set_up(self.rows.scale_tril, Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def loc(self) -> Tensor:
        return self._loc

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def n_outputs(self) -> int:
        """How many columns share one covariance, ``D = d_1 ⋯ d_M``; 1 without outputs."""
        return self.event_shape[2:].numel()

    @property
    def row_variance(self) -> Tensor:
        """The variance in each row of each column, ``(N, K)``, the same for all outputs."""
        return self.rows.variance().mT

    @property
    def variance(self) -> Tensor:
        ones = (1,) * (len(self.event_shape) - 2)
        return self.row_variance.reshape(*self.event_shape[:2], *ones).expand(self.shape())

    @property
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    @property
    def covariance_matrix(self) -> Tensor:
        """The dense covariance of ``x.reshape(-1)``, ``(*batch, T, T)``. For small cases only."""
        of_latents, of_outputs = (identity_like(n, self.row_variance) for n in (self.event_shape[1], self.n_outputs))
        total = self.event_shape.numel()
        dense = torch.einsum("knm,kj,de->nkdmje", self.rows.covariance(), of_latents, of_outputs)
        return dense.reshape(total, total).expand((*self.batch_shape, total, total))

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        factor = self.rows.scale_tril
        white = torch.randn(self._extended_shape(Size(sample_shape)), dtype=factor.dtype, device=factor.device)
        return self.loc + self._from_columns(factor @ self._to_columns(white))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        columns = self._to_columns(value - self.loc)
        squared = torch.linalg.solve_triangular(self.rows.scale_tril, columns, upper=False).square().sum((-3, -2, -1))
        return -0.5 * (squared + self.log_det() + self.event_shape.numel() * math.log(2 * math.pi))

    def log_det(self) -> Tensor:
        """The log-determinant of the whole covariance, ``()``."""
        return 2.0 * self.n_outputs * self.rows.log_det().sum()

    def entropy(self) -> Tensor:
        total = self.log_det() + self.event_shape.numel() * (1 + math.log(2 * math.pi))
        return 0.5 * total.expand(self.batch_shape)

    def squared_distance_to(self, prior: TensorNormal) -> Tensor:
        """The mean's squared distance to that of a tensor-normal, in units of the latter's covariance."""
        difference = self.loc if prior.is_centred else self.loc - prior.loc
        return prior.whiten(difference).square().flatten(-len(self.event_shape)).sum(-1)

    def _to_columns(self, tensor: Tensor) -> Tensor:
        """From ``(…, N, K, d_1, …, d_M)`` to ``(…, K, N, D)``."""
        n_modes = len(self.event_shape)
        return tensor.reshape(*tensor.shape[:-n_modes], *self.event_shape[:2], -1).transpose(-3, -2)

    def _from_columns(self, columns: Tensor) -> Tensor:
        """From ``(…, K, N, D)`` to ``(…, N, K, d_1, …, d_M)``."""
        return columns.transpose(-3, -2).reshape(*columns.shape[:-3], *self.event_shape)


class ProjectedColumnNormal(ColumnNormal):
    """Weights as in :class:`ColumnNormal` whose mean is held as a projection of the data, ``loc_kd = B_k y_d``.

    What the bound needs of the mean goes through the Gram matrix ``Y Yᵀ``; an array with an output dimension is built
    only when somebody asks for :attr:`loc`, a draw or a density.

    :param projection: ``B``, ``(K, N, N)``.
    :param outputs: ``Y``, ``(N, d_1, …, d_M)``, a tensor or an :class:`~pyro_gprn.outputs.source.OutputSource`. It is
        referred to, not copied.
    :param gram: ``Y Yᵀ`` over all outputs, ``(N, N)``.
    :param scale_tril: as for :class:`ColumnNormal`.

    >>> Y, factor = torch.randn(5, 1000), torch.eye(5).expand(2, 5, 5)
    >>> weights = ProjectedColumnNormal(torch.eye(5).expand(2, 5, 5), Y, Y @ Y.T, factor)
    >>> weights.event_shape, torch.equal(weights.loc[:, 1], Y)
    (torch.Size([5, 2, 1000]), True)
    """

    def __init__(
        self,
        projection: Tensor,
        outputs: Tensor | OutputSource,
        gram: Tensor,
        scale_tril: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self.projection, self.outputs, self.gram = projection, as_source(outputs), gram
        n_latents, n_rows = projection.shape[:2]
        self.set_up(scale_tril, Size(), Size((n_rows, n_latents, *outputs.shape[1:])), validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: ColumnNormal | None = None) -> ColumnNormal:
        return self if Size(batch_shape) == Size() else ColumnNormal(self.loc, self.rows.scale_tril).expand(batch_shape)

    @property
    def loc(self) -> Tensor:
        outputs = self.outputs.read(slice(None)).to(self.projection.dtype)
        return self._from_columns(self.projection @ outputs)

    def squared_distance_to(self, prior: TensorNormal) -> Tensor:
        """As in the base class, but from the Gram matrix if the prior is that of a GPRN's weights."""
        if not prior.is_centred:
            return super().squared_distance_to(prior)
        whitened = prior.factors[0].solve(self.projection)
        return ((whitened @ self.gram) * whitened).sum()


@register_kl(ColumnNormal, TensorNormal)
def _kl_column_tensor(q: ColumnNormal, prior: TensorNormal) -> Tensor:
    rows, *rest = prior.factors
    if q.event_shape != prior.event_shape:
        raise ValueError(
            f"KL needs two distributions over the same modes; got event shapes {tuple(q.event_shape)}"
            f" and {tuple(prior.event_shape)}"
        )
    if not all(isinstance(factor, Identity) for factor in rest):
        raise NotImplementedError("no closed-form KL between a ColumnNormal and a prior that relates its columns")
    ratios: Tensor = rows.trace_ratio(q.rows)  # type: ignore[assignment]  # (K,), since q has a factor for each column
    trace = q.n_outputs * ratios.sum()
    return 0.5 * (trace + q.squared_distance_to(prior) - q.event_shape.numel() + prior.log_det() - q.log_det())
