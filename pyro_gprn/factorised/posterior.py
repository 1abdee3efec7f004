"""What is asked of a posterior q(F) q(W): the functions that a new kind of posterior registers.

A guide draws "f" and "w" from two distributions. For each class of these distributions the rest of the package needs:

- their divergence from the prior, ``torch.distributions.kl_divergence`` (register with ``register_kl``);
- their moments, :func:`row_second_moment` and :func:`output_moments`, for the bound;
- themselves at new rows, :func:`functions_at_new_rows` and :func:`weights_at_new_rows`, for predictions.

A posterior in which F and W are not independent may be a mixture of such pairs: it registers :func:`as_mixture`, and
nothing else.

A new kind registers a function for each. Hyperparameters with priors are no concern of theirs: see
:class:`~pyro_gprn.network.hyperparameters.Hyperparameters`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, TypeAlias

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution

from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.conditional import Conditional


class OutputMoments(NamedTuple):
    """Sums over outputs, each output multiplied by its precision ``1/σ_d²`` (zero where it is missing)."""

    yy: Tensor  #: Σ_n y_nᵀ y_n, ()
    yw: Tensor  #: y_nᵀ E[W_n], (N, K)
    ww: Tensor  #: E[W_nᵀ W_n], (N, K, K)

    def add_to_ww(self, covariance: Tensor) -> OutputMoments:
        """Adds the weights' covariance, ``(N, K, K)``, to ``ww``, which without it holds the mean's part alone."""
        return self._replace(ww=self.ww + covariance)


#: The variance of a block of chosen outputs, ``(…, N*, b)``.
VarianceOfOutputs: TypeAlias = Callable[[OutputSelection, slice], Tensor]


class FunctionsAtNewRows(ABC):
    """The posterior of the latent functions at new inputs."""

    mean: Tensor  #: the functions' mean, (N*, K)

    @abstractmethod
    def covariance(self) -> Tensor:
        """The covariance of the K functions at each new input on its own, ``(N*, K, K)``."""

    @abstractmethod
    def sample(self, n_draws: int, joint: bool, generator: torch.Generator | None) -> Tensor:
        """Draws of the functions, ``(n_draws, N*, K)``: joint over new inputs, or right only at each on its own."""


class WeightsAtNewRows(ABC):
    """The posterior of the weights at new inputs, for a selection of outputs or a block of b of these at a time."""

    n_rows: int  #: the number N of training inputs

    @abstractmethod
    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        """The mean of the weights, ``(N*, K, b)``."""

    @abstractmethod
    def variance(self, f_squared: Tensor) -> VarianceOfOutputs:
        """What tells ``tr(Cov(w_nd) ffᵀ)`` of some outputs, ``(…, N*, b)``, for ``ffᵀ`` of shape ``(…, N*, K, K)``."""

    @abstractmethod
    def deviation(self, f: Tensor, chosen: OutputSelection, generator: torch.Generator | None) -> Tensor:
        """Draws of ``Σ_k f_k (W* − E[W*])_k``, ``(s, N*, size)``, given draws ``f``, ``(s, N*, K)``."""


class Mixture(NamedTuple):
    """A posterior as a mixture, in equal shares, of components in which F and W are independent."""

    components: Sequence[tuple[Distribution, Distribution]]  #: q_j(F) and q_j(W) of each component j
    entropy: Tensor | float = 0.0  #: a lower bound of the mixture's entropy, less the mean entropy of its components


@singledispatch
def as_mixture(q_f: Distribution, q_w: Distribution) -> Mixture:
    """The posterior that a guide draws from, as a mixture; by default it is one component, ``q(F) q(W)``.

    :param q_f: what "f" is drawn from.
    :param q_w: what "w" is drawn from.
    """
    return Mixture([(q_f, q_w)])


@singledispatch
def row_second_moment(q_f: Distribution) -> Tensor:
    """``E[h_n h_nᵀ]`` for each row ``h_n`` of F, ``(N, K, K)``.

    :param q_f: posterior of F, over ``(N, K)``.

    >>> from pyro_gprn import MatrixNormal
    >>> row_second_moment(MatrixNormal(torch.ones(5, 2), torch.ones(5), None))[0]
    tensor([[2., 1.],
            [1., 2.]])
    """
    raise NotImplementedError(f"no closed-form moments for functions that are {type(q_f).__name__}")


@singledispatch
def output_moments(q_w: Distribution, Y: Tensor, precision: Tensor) -> OutputMoments:
    """Moments of the weights and the outputs, summed over outputs.

    :param q_w: posterior of W, over ``(N, K, d_1, …, d_M)``.
    :param Y: outputs, ``(N, d_1, …, d_M)``.
    :param precision: ``1/σ_y²``: ``()``, ``(d_1, …, d_M)`` or ``(N, d_1, …, d_M)``.
    :raises ValueError: if Y holds NaN or inf.

    >>> from pyro_gprn import TensorNormal
    >>> moments = output_moments(TensorNormal(torch.ones(5, 2, 3), [None] * 3), torch.ones(5, 3), torch.tensor(1.0))
    >>> moments.yy, moments.yw.shape, moments.ww.shape
    (tensor(15.), torch.Size([5, 2]), torch.Size([5, 2, 2]))
    """
    raise NotImplementedError(f"no closed-form moments for weights that are {type(q_w).__name__}")


@singledispatch
def functions_at_new_rows(q_f: Distribution, at_new: Conditional) -> FunctionsAtNewRows:
    """The functions at new inputs, where ``q_f`` over ``(N, K)`` is their posterior at the training inputs.

    :param at_new: the functions' prior at new inputs, given their values at the training inputs.

    >>> from pyro_gprn import MatrixNormal
    >>> at_new = Conditional(torch.eye(5), torch.zeros(5, 3), torch.eye(3))
    >>> functions_at_new_rows(MatrixNormal(torch.ones(5, 2), None, None), at_new).covariance().shape
    torch.Size([3, 2, 2])
    """
    raise NotImplementedError(f"no predictions from functions that are {type(q_f).__name__}")


@singledispatch
def weights_at_new_rows(q_w: Distribution, at_new: Conditional) -> WeightsAtNewRows:
    """The weights at new inputs, where ``q_w`` over ``(N, K, d_1, …, d_M)`` is their posterior at the training inputs.

    :param at_new: the weights' prior at new inputs, given their values at the training inputs.

    >>> from pyro_gprn import TensorNormal
    >>> at_new = Conditional(torch.eye(5), torch.zeros(5, 3), torch.eye(3))
    >>> weights = weights_at_new_rows(TensorNormal(torch.ones(5, 2, 10), [None] * 3), at_new)
    >>> weights.mean(OutputSelection([7, 8, 9], torch.Size([10])), slice(0, 2)).shape
    torch.Size([3, 2, 2])
    """
    raise NotImplementedError(f"no predictions from weights that are {type(q_w).__name__}")


class Undrawn(Messenger):
    """Gives the named latent sites NaN (one number, expanded) in place of a draw.

    It is for callers that want only the distributions of these sites. A model that uses the value gets NaN rather than
    a wrong answer.

    >>> import pyro
    >>> with Undrawn(["f"]):
    ...     pyro.sample("f", pyro.distributions.Normal(0.0, 1.0))
    tensor(nan, dtype=torch.float64)
    """

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.names = names

    def _pyro_sample(self, msg: dict) -> None:
        if msg["name"] in self.names:
            msg["value"] = torch.tensor(math.nan, dtype=torch.float64).expand(msg["fn"].shape())
            msg["done"] = True


def posteriors_of(guide: Callable, *data: Any) -> tuple[Distribution, Distribution]:
    """``q(F)`` and ``q(W)`` of a guide. The guide is called with the data, but neither F nor W is drawn.

    >>> from pyro_gprn import GPRN, KroneckerGuide
    >>> model = GPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> q_f, q_w = posteriors_of(KroneckerGuide(model), torch.ones(5, 3))
    >>> q_f.event_shape, q_w.event_shape
    (torch.Size([5, 2]), torch.Size([5, 2, 3]))
    """
    trace = poutine.trace(Undrawn(("f", "w"))(guide)).get_trace(*data)
    missing = [name for name in ("f", "w") if name not in trace]
    if missing:
        raise ValueError(f"predictions from a guide of a GPRN need its sites 'f' and 'w'; {missing[0]!r} is missing")
    return trace.nodes["f"]["fn"], trace.nodes["w"]["fn"]
