"""What posterior.py asks for, of a mixture of isotropic Gaussians over F and W together.

The entropy of ``q(u) = 1/Q Σ_j Normal(u | μ_j, v_j I)`` has no closed form. By Jensen's inequality (Gershman, Hoffman
and Blei 2012, equation 7)::

    H[q] ≥ −1/Q Σ_j log 1/Q Σ_i Normal(μ_j | μ_i, (v_j + v_i) I)

For one component this is less than its entropy by ``n/2 (1 − log 2)``, where n is the number of dimensions of u.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from pyro_gprn.algebra.tensor_normal import TensorNormal
from pyro_gprn.factorised.posterior import Mixture, as_mixture


class IsotropicMixture(TorchDistribution):
    """The part for one site, F or W, of a mixture of isotropic Gaussians over both, in equal shares.

    Its density is exact: of a first site the marginal, and of a second site the one given the first. A draw is
    reparametrised: the shares are fixed, so that which component it comes from does not depend on a parameter.

    :param components: the Q components, each a tensor-normal without a batch, with covariance ``v_j I``.
    :param scales: their standard deviations ``√v_j``, ``(Q,)``.
    :param choice: the numbers of the components to draw from, an integer tensor of the batch shape. Both sites need the
        same; None draws from any.
    :param given: the first site's distribution and value, if this is the second site.

    >>> scales = torch.tensor([0.1, 0.2])
    >>> means = torch.tensor([0.0, 4.0])
    >>> components = [TensorNormal(m.expand(5, 3), [s.expand(5), None]) for m, s in zip(means, scales)]
    >>> mixture = IsotropicMixture(components, scales)
    >>> mixture.mean[0], mixture.rsample((7,)).shape, mixture.log_prob(torch.zeros(2, 5, 3)).shape
    (tensor([2., 2., 2.]), torch.Size([7, 5, 3]), torch.Size([2]))
    """

    arg_constraints: dict[str, constraints.Constraint] = {"scales": constraints.positive}
    has_rsample = True

    def __init__(
        self,
        components: Sequence[TensorNormal],
        scales: Tensor,
        choice: Tensor | None = None,
        given: tuple[IsotropicMixture, Tensor] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.components, self.scales, self.given = tuple(components), scales, given
        self._choice = choice
        batch_shape = Size() if choice is None else choice.shape
        super().__init__(batch_shape, self.components[0].event_shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, len(self.event_shape))

    def at(self, choice: Tensor, given: tuple[IsotropicMixture, Tensor] | None = None) -> IsotropicMixture:
        """The same mixture for draws from chosen components; ``given`` as in the constructor."""
        return IsotropicMixture(self.components, self.scales, choice, given)

    def expand(self, batch_shape: Sequence[int], _instance: TorchDistribution | None = None) -> IsotropicMixture:
        new = self._get_checked_instance(IsotropicMixture, _instance)
        new.components, new.scales, new.given = self.components, self.scales, self.given
        new._choice = None if self._choice is None else self._choice.expand(Size(batch_shape))
        super(IsotropicMixture, new).__init__(Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        return self._locs().mean(0).expand(self.shape())

    @property
    def variance(self) -> Tensor:
        variance = self.scales.square().mean() + self._locs().var(0, correction=0)
        return variance.expand(self.shape())

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        choice = self._choose(Size(sample_shape))
        scales = self.scales[choice].reshape(choice.shape + (1,) * len(self.event_shape))
        white = torch.randn(choice.shape + self.event_shape, dtype=scales.dtype, device=scales.device)
        return self._locs()[choice] + scales * white

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        here = self._log_prob_by_component(value)
        if self.given is None:
            before = torch.zeros_like(here)
        else:
            first, first_value = self.given
            before = first._log_prob_by_component(first_value)
        return (before + here).logsumexp(0) - before.logsumexp(0)

    def squared_distances(self) -> Tensor:
        """``‖μ_j − μ_i‖²`` between the means of components, ``(Q, Q)``."""
        Q = len(self.components)
        distances = self.scales.new_zeros(Q, Q)
        for j in range(Q):
            for i in range(j):
                scaled = self.components[j].squared_distance_to(self.components[i])  # by component i's variance
                distances[j, i] = distances[i, j] = scaled * self.scales[i].square()
        return distances

    def _choose(self, sample_shape: Size) -> Tensor:
        shape = sample_shape + self.batch_shape
        if self._choice is not None:
            return self._choice.expand(shape)
        return torch.randint(len(self.components), shape, device=self.scales.device)

    def _locs(self) -> Tensor:
        return torch.stack([component.loc for component in self.components])

    def _log_prob_by_component(self, value: Tensor) -> Tensor:
        return torch.stack([component.log_prob(value) for component in self.components])


@as_mixture.register
def _(q_f: IsotropicMixture, q_w: IsotropicMixture) -> Mixture:
    # With H_j = n/2 (1 + log 2πv_j) the entropy of component j, the bound less the mean of these is
    #   log Q − 1/Q Σ_j log Σ_i exp( H_j + log Normal(μ_j | μ_i, (v_j + v_i) I) )
    n = q_f.event_shape.numel() + q_w.event_shape.numel()
    variances = q_f.scales.square()
    own, both = variances.unsqueeze(-1), variances.unsqueeze(-1) + variances
    overlaps = 0.5 * n * (1 + (own / both).log()) - 0.5 * (q_f.squared_distances() + q_w.squared_distances()) / both
    entropy = math.log(len(variances)) - overlaps.logsumexp(-1).mean()
    return Mixture(list(zip(q_f.components, q_w.components, strict=True)), entropy)
