"""What is asked of a trained network, whatever the method: the functions that a method registers for its model.

- :func:`posterior_predictive`, which every method registers;
- :func:`condition`, if something of a prediction does not depend on its inputs and is worth keeping;
- :func:`scales_of_outputs`, if outputs may have scales of their own;
- :func:`prediction_settings`, which names those of these two that predictions take;
- :func:`output_correlation`, if the correlation between outputs is known.

All but the first have a default, for methods that have nothing of the kind. So the estimator asks every network the
same, and does not look at which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any, Protocol

import torch
from torch import Tensor

from pyro_gprn.network.base import Network
from pyro_gprn.outputs.selection import Outputs
from pyro_gprn.prediction.base import PosteriorPredictive
from pyro_gprn.prediction.scales import Scales
from pyro_gprn.training.widening import AS_THEY_ARE, Widening


class Conditioned(Protocol):
    """What the predictions of a model share, whatever their inputs."""

    @property
    def n_held(self) -> int:
        """About how many numbers a prediction holds for each new input."""
        ...


@singledispatch
def posterior_predictive(
    model: Network, posterior: Callable | Mapping[str, Tensor], X_new: Tensor, Y: Any = None, **settings: Any
) -> PosteriorPredictive:
    """Predicts outputs at new inputs: an object with their mean, variance, quantiles, joint draws and log density.

    At the input of a training row a collapsed model tells the row's missing outputs from its other outputs, too, if it
    has 20 to 300 of them (collapsed/between_outputs.py). A new model registers its own kind:
    ``posterior_predictive.register(MyModel, MyPredictive)``.

    :param model: a :class:`~pyro_gprn.GPRN`, a :class:`~pyro_gprn.CollapsedGPRN` or a
        :class:`~pyro_gprn.coregionalised.CoregionalisedGPRN`.
    :param posterior: its trained guide; for a collapsed model, draws of its sites, as from MCMC, will do too.
    :param X_new: new inputs, ``(N*, P)``.
    :param Y: the training outputs, ``(N, d_1, …, d_M)``, if model and guide have not seen them.
    :param settings: ``generator``, source of random numbers (None uses torch's global state); ``n_draws``, how many
        components the mixture of a collapsed model has; ``output_scales`` of a collapsed model, as
        :func:`~pyro_gprn.learn_output_scales` finds them (None gives all outputs one scale); ``fills_holes``, False if
        a missing output of a training row is to be predicted as if the row were new.

    >>> import torch
    >>> from pyro_gprn import GPRN, KroneckerGuide
    >>> X = torch.linspace(0, 1, 8)[:, None]
    >>> model = GPRN(X, output_shape=(20, 30), n_latents=2)
    >>> predictive = posterior_predictive(model, KroneckerGuide(model), X[:5] + 0.05, Y=torch.ones(8, 20, 30))
    >>> predictive.mean().shape, predictive.variance(outputs=(3, slice(0, 10))).shape
    (torch.Size([5, 20, 30]), torch.Size([5, 10]))
    >>> predictive.sample(7, outputs=(3, [4, 5])).shape
    torch.Size([7, 5, 2])
    """
    raise TypeError(f"predictions need a GPRN, a CollapsedGPRN or a CoregionalisedGPRN; got {type(model).__name__}")


@singledispatch
def condition(
    model: Network,
    posterior: Callable | Mapping[str, Tensor],
    Y: Any = None,
    *,
    generator: torch.Generator | None = None,
    coordinates: Any = None,
) -> Conditioned | None:
    """What predictions at all inputs share, made once: a posterior given the data; by default None.

    :func:`posterior_predictive` takes it as ``conditioned``. The first parameters are the same.

    :param generator: source of random numbers, if draws are taken; None uses torch's global state.
    :param coordinates: white coordinates of the outputs of a collapsed model, if they are known from before.

    >>> from pyro_gprn import CollapsedGPRN, CollapsedGuide
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=3, n_latents=2)
    >>> guide = CollapsedGuide(model)
    >>> conditioned = condition(model, guide, torch.ones(8, 3))
    >>> [len(posterior_predictive(model, guide, x, conditioned=conditioned).mean()) for x in model.X.split(5)]
    [5, 3]
    """
    return None


@singledispatch
def scales_of_outputs(
    model: Network,
    posterior: Callable | Mapping[str, Tensor],
    Y: Any = None,
    *,
    prior_degrees: float | None = None,
    widening: Widening = AS_THEY_ARE,
    as_rule: bool = False,
    generator: torch.Generator | None = None,
) -> Scales | None:
    """What the deviations of each output are to be multiplied by, as the data tell it; by default None.

    :func:`posterior_predictive` takes it as ``output_scales``. The first parameters are the same.

    :param prior_degrees: ν, how firmly scales are expected to be near 1 before the data are seen, in observations;
        None leaves it to the data.
    :param widening: what scales are multiplied by then, for what was held out; by default 1.
    :param as_rule: True if a rule will do, which tells the scales of some outputs when they are asked for: it takes no
        pass over Y.
    :param generator: source of random numbers; None uses torch's global state.

    >>> from pyro_gprn import CoregionalisedGPRN
    >>> from pyro_gprn.coregionalised import CoregionalisedGuide
    >>> model = CoregionalisedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=3, n_latents=2)
    >>> scales_of_outputs(model, CoregionalisedGuide(model)).squares  # each has a variance of its own already
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    return None


@singledispatch
def prediction_settings(model: Network) -> tuple[str, ...]:
    """Which of these settings :func:`posterior_predictive` takes for a model; by default none.

    ``conditioned``, what :func:`condition` made; ``output_scales``, what :func:`scales_of_outputs` found;
    ``variance_type``, the type in which variances may be computed; and ``fills_holes``, whether other outputs of a
    training row tell its missing ones.

    >>> from pyro_gprn import GPRN, CoregionalisedGPRN
    >>> X = torch.linspace(0, 1, 8)[:, None]
    >>> prediction_settings(GPRN(X, 3, n_latents=2)), prediction_settings(CoregionalisedGPRN(X, 3, n_latents=2))
    ((), ('conditioned', 'output_scales'))
    """
    return ()


@singledispatch
def output_correlation(
    model: Network,
    posterior: Callable | Mapping[str, Tensor],
    X_new: Tensor,
    outputs: Outputs = None,
    Y: Any = None,
    *,
    n_draws: int = 64,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The correlation between outputs at new inputs, ``(N*, b, b)`` over the ``b`` chosen outputs, flattened.

    Of the signal ``W(x) f(x)`` for f from its prior: ``E[W(x) W(x)ᵀ]`` over the posterior of the weights, scaled to a
    unit diagonal. It changes with the input if the weights do, and no rotation of the latent functions changes it.

    :param model: a :class:`~pyro_gprn.CollapsedGPRN` or a :class:`~pyro_gprn.coregionalised.CoregionalisedGPRN`.
    :param posterior: as for :func:`posterior_predictive`.
    :param X_new: ``(N*, P)``.
    :param outputs: which outputs, as for :class:`~pyro_gprn.PosteriorPredictive`.
    :param Y: the data, if the model has not seen them.
    :param n_draws: over how many draws of weights that were integrated out the average is. (Of draws all are used.)
    :param generator: of random numbers; None is torch's global state.

    >>> from pyro_gprn import CollapsedGPRN, CollapsedGuide
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=1000, n_latents=2)
    >>> correlation = output_correlation(model, CollapsedGuide(model), model.X[:3], [0, 7], Y=torch.randn(8, 1000))
    >>> correlation.shape, torch.allclose(correlation[0].diagonal(), torch.ones(2, dtype=torch.float64))
    (torch.Size([3, 2, 2]), True)
    """
    raise ValueError(
        f"the correlation of outputs needs inference='collapsed', a CollapsedGPRN; got {type(model).__name__}"
    )
