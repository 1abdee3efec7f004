"""What scales, weights and predictions ask of a network with inducing inputs."""

from __future__ import annotations

from pyro_gprn.collapsed.draws import PosteriorDraws
from pyro_gprn.collapsed.inducing import LowRankCovariances
from pyro_gprn.collapsed.low_rank import OutputsGivenInducing
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.outputs.compressed import CompressedStatistics


def low_rank_covariances(model: CollapsedGPRN) -> LowRankCovariances:
    """The covariances of a model with inducing inputs."""
    covariances = model.covariances()
    assert isinstance(covariances, LowRankCovariances)
    return covariances


def at_mean(draws: PosteriorDraws, known: CompressedStatistics) -> OutputsGivenInducing:
    """The outputs given the mean of some draws of the functions, at the centre of the hyperparameters' posterior."""
    covariances = draws.model.at_centre(lambda: low_rank_covariances(draws.model))
    return OutputsGivenInducing(draws.V.mean(0), covariances, known)
