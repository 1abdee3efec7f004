"""Random distributions and their dense counterparts, for tests against dense algebra."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from pyro_gprn import TensorNormal
from pyro_gprn.algebra.factors import Diagonal, Factor, Triangular
from pyro_gprn.collapsed.likelihood import OutputsGivenF
from pyro_gprn.factorised.column_normal import ColumnNormal
from pyro_gprn.outputs.gram import OutputStatistics

BATCH_SHAPES = [(), (4,), (2, 3)]
KINDS = ["full", "diagonal", "identity"]


def random_triangle(size: int, batch_shape: Sequence[int] = (), dtype: torch.dtype = torch.float64) -> Tensor:
    below = 0.5 * torch.randn(*batch_shape, size, size, dtype=dtype).tril(-1)
    return below + torch.diag_embed(0.5 + torch.rand(*batch_shape, size, dtype=dtype))


def random_factor(
    kind: str, size: int, batch_shape: Sequence[int] = (), dtype: torch.dtype = torch.float64
) -> Factor | None:
    if kind == "full":
        return Triangular(random_triangle(size, batch_shape, dtype))
    if kind == "diagonal":
        return Diagonal(0.5 + torch.rand(*batch_shape, size, dtype=dtype))
    return None


def random_tensor_normal(
    modes: Sequence[int],
    kinds: Sequence[str],
    batch_shape: Sequence[int] = (),
    dtype: torch.dtype = torch.float64,
) -> TensorNormal:
    factors = [random_factor(kind, size, batch_shape, dtype) for kind, size in zip(kinds, modes, strict=True)]
    return TensorNormal(torch.randn(*batch_shape, *modes, dtype=dtype), factors)


def dense(distribution: TensorNormal | ColumnNormal) -> MultivariateNormal:
    """The same distribution over ``x.reshape(-1)``."""
    return MultivariateNormal(distribution.loc.flatten(-len(distribution.event_shape)), distribution.covariance_matrix)


def log_density(covariance: Tensor, known: OutputStatistics) -> Tensor:
    """``log p(Y)`` of outputs that are independent draws of Normal(0, covariance), missing ones left out."""
    return OutputsGivenF(covariance, known).log_density()


def randomise(module: torch.nn.Module, scale: float = 0.3) -> None:
    """Moves every (unconstrained) parameter to a random place."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += scale * torch.randn_like(parameter)
