"""What the guides of a network with weights share."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Literal

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import Parameter

from pyro_gprn.algebra.tensor_normal import TensorNormal
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.factorised.projected import best_projection, project
from pyro_gprn.network.checks import check_outputs
from pyro_gprn.outputs.gram import OutputStatistics, StatisticsMemory


class FactorisedGuide(PyroModule):
    """A guide of a :class:`~pyro_gprn.GPRN` that draws "f" and "w" from ``q(F)`` and ``q(W)``.

    A subclass says what these are, in :meth:`posterior`.

    :param model: the model whose posterior it approximates.
    :param mean: ``"projected"`` holds the mean of the weights as a projection of Y, the same for all outputs;
        ``"full"`` holds it number by number.
    """

    def __init__(self, model: GPRN, mean: Literal["projected", "full"]) -> None:
        super().__init__()
        if mean not in ("projected", "full"):
            raise ValueError(f"mean must be 'projected' or 'full'; got {mean!r}")
        if mean == "projected" and not has_one_noise(model):
            raise ValueError("mean='projected' needs one noise_y for all outputs; use mean='full' for one each")
        self._model = (model,)  # a tuple, so that the model is not a submodule
        self.mean = mean
        self._statistics = StatisticsMemory()

    @property
    def model(self) -> GPRN:
        return self._model[0]

    def _set_up_mean(self) -> None:
        """Makes the parameter of the weights' mean, whitened by their prior and zero to begin with."""
        N, K = self.model.n_rows, self.model.n_latents
        if self.mean == "projected":
            self.w_projection = Parameter(self.model.X.new_zeros(K, N, N))
        else:
            self.w_loc = Parameter(self.model.X.new_zeros(N, K, *self.model.output_shape))

    @abstractmethod
    def posterior(self, Y: Any = None) -> tuple[Distribution, Distribution]:
        """``q(F)`` over ``(N, K)`` and ``q(W)`` over ``(N, K, d_1, …, d_M)``; ``Y`` as for :meth:`statistics`."""

    def statistics(self, Y: Any = None) -> OutputStatistics:
        """The Gram matrices of the outputs.

        :param Y: a tensor ``(N, d_1, …, d_M)``, a source, or statistics; None stands for the last outputs.
        """
        if isinstance(Y, Tensor):
            Y, _ = check_outputs(Y, None, self.model.n_rows, self.model.output_shape)
        return self._statistics.of(Y)

    def observed(self, Y: Any = None) -> tuple[Tensor, Tensor | None]:
        """The outputs ``(N, d_1, …, d_M)``, and a mask of the same shape if some are missing.

        With a projected mean no formula needs a value of Y: then all values are NaN, one number expanded.

        :param Y: as for :meth:`statistics`.
        """
        known = self.statistics(Y)
        shape, device = known.source.shape, known.source.device
        if self.mean == "projected":
            return torch.tensor(math.nan, dtype=torch.float64, device=device).expand(shape), None
        values = known.source.read(slice(None)).to(torch.float64).reshape(shape)
        return (values, None) if known.is_complete else (torch.where(values.isnan(), 0.0, values), ~values.isnan())

    def _given_for_mean(self, Y: Any) -> tuple[OutputStatistics, Any, TensorNormal, Tensor]:
        """What an exact update of the weights' mean takes: statistics of the outputs, q(F), p(W) and the noise.

        Hyperparameters with priors stand at the centre of their posteriors.

        :param Y: as for :meth:`statistics`.
        """
        known = self.statistics(Y)
        if self.mean == "projected" and not known.is_complete:
            raise ValueError("mean='projected' needs complete outputs; use mean='full' where some are missing")
        (q_f, _), (_, prior_w), noise = self.model.at_centre(
            lambda: (self.posterior(), self.model.prior(), self.model.noise_y)
        )
        return known, q_f, prior_w, noise

    def _best_mean(self, known: OutputStatistics, q_f: Distribution, prior_w: TensorNormal, noise: Tensor) -> Tensor:
        """The best mean of the weights given all else, whitened, as the guide holds it: projected or full."""
        if self.mean == "projected":
            return best_projection(q_f, prior_w, noise)
        values, patterns = known.values_at(slice(None)), known.patterns_at(slice(None))
        mean = values.new_empty(*q_f.event_shape, values.shape[1])
        for number, observed in enumerate(known.observed):
            some = patterns == number
            mean[..., some] = project(best_projection(q_f, prior_w, noise, observed), values[:, some])
        return mean.reshape(prior_w.event_shape)

    def forward(self, Y: Any = None, mask: Tensor | None = None) -> None:
        if mask is not None and self.mean == "projected":
            raise ValueError("mean='projected' needs complete outputs; use mean='full' with a mask")
        self.draw(*self.posterior(Y))

    def draw(self, q_f: Any, q_w: Any) -> None:
        """Draws the sites "f" and "w" from the two parts of the posterior."""
        pyro.sample("f", q_f)
        pyro.sample("w", q_w)


def has_one_noise(model: GPRN) -> bool:
    """True if all outputs share one noise."""
    return model.at_centre(lambda: model.noise_y.dim()) == 0
