"""Posterior, predictions and densities for ArviZ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor

from pyro_gprn.diagnostics.arviz_versions import Variable, to_inference_data
from pyro_gprn.diagnostics.draws import ChainDraws, draw_chain
from pyro_gprn.diagnostics.source import PosteriorSource
from pyro_gprn.outputs.selection import Outputs, OutputSelection
from pyro_gprn.pyro_state import new_generator

Groups = dict[str, dict[str, Variable]]
_DRAWS = ("chain", "draw")
_FUNCTIONS = (*_DRAWS, "run", "latent")
#: The dimension of hyperparameters that each output has of its own: all outputs, whichever are selected.
_EACH = "each_output"


def to_arviz(
    source: Any,
    X: Any = None,
    Y: Any = None,
    draws: int = 200,
    *,
    outputs: Outputs = None,
    weights: bool = False,
    correlation_at: Any = None,
    seed: int = 0,
) -> Any:
    """A posterior as ArviZ takes it, in InferenceData of ArviZ 0.x or a DataTree of 1.x, with these groups:

    - *posterior*: hyperparameters (over "each_output" where every output has its own); ``f``, the functions at the
      training inputs, each draw rotated to agree with the first; on request ``w``, the weights, rotated along, and
      ``correlation``;
    - *posterior_predictive* and *predictions*: ``y`` at the training inputs, and at ``X``;
    - *prior* and *prior_predictive*: at the fitted hyperparameters;
    - *log_likelihood*: ``y``, for each row the log density of its outputs given all other rows, which leave-one-out by
      importance sampling needs where rows are not independent;
    - *sample_stats* (``lp``, ``log_q``, ``bound``), *observed_data*, *constant_data*.

    Of a network that has its weights (``inference="kronecker"`` and others) there is the same, except for what needs
    the weights integrated out: *log_likelihood* (the attribute "no_log_likelihood" of every group says why), ``lp``,
    ``log_q`` and ``correlation``. Its ``bound`` is that of the chain. Its draws of outputs are from the same posterior
    as those of ``f``, but are not made from them.

    Restarts are chains. Outputs are in the data's units and have their names; log-likelihoods are the model's, for
    standardised outputs, times the power of the likelihood. Where the fit has a scale for each output, draws of outputs
    given the data have it too; prior and log-likelihood are those that the network was trained by, without it.

    :param source: a fitted :class:`~pyro_gprn.GPRNRegressor`, ``(model, guide)``, ``(model, mcmc)`` or
        ``(model, draws)``; the last two of a collapsed model.
    :param X: new inputs, ``(N*, P)``.
    :param Y: outputs observed at ``X``, if any, ``(N*, …)``; they are kept in *predictions_constant_data*.
    :param draws: how many draws in each chain. (Of MCMC all are used.)
    :param outputs: a selection of outputs, as for :class:`~pyro_gprn.PosteriorPredictive`; by default all, or an evenly
        spread selection if all would be more than ten million numbers.
    :param weights: whether to include the weights of these outputs, ``(chain, draw, run, latent, …)``. A network that
        has its weights draws those of all outputs for this, and refuses if they are more than ten million numbers.
    :param correlation_at: inputs ``(m, P)`` at which to include the correlation between these outputs. It needs the
        weights integrated out.
    :param seed: seed of all draws.

    >>> from pyro_gprn import GPRNRegressor
    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> settings = {"selection": False, "steps": 10, "restarts": 2, "seed": 0, "progress": False}
    >>> r = GPRNRegressor(1, **settings).fit(X, np.sin(X + np.arange(3)))
    >>> data = to_arviz(r, X=X[:4], draws=20)
    >>> data["posterior_predictive"]["y"].dims, data["predictions"]["y"].shape
    (('chain', 'draw', 'run', 'output'), (2, 20, 4, 3))
    """
    about = PosteriorSource.of(source)
    chosen = about.choose(outputs, draws)
    generator = new_generator(seed)
    chains = [
        draw_chain(model, posterior, about.known, draws, about.scales(number), generator=generator)
        for number, (model, posterior) in enumerate(about.chains)
    ]

    def predict(X_new: Tensor, rows: str) -> Variable:
        return _outputs(about, chosen, [chain.predict(X_new, chosen, generator) for chain in chains], rows)

    groups: Groups = {"posterior": _posterior(about, chains), "sample_stats": _sample_stats(chains)}
    if weights:
        groups["posterior"]["w"] = _weights(about, chosen, chains, generator)
    if correlation_at is not None:
        groups["posterior"]["correlation"] = _correlation(about, chosen, correlation_at, chains, generator)
    groups["posterior_predictive"] = {"y": predict(about.model.X, "run")}
    if X is not None:
        groups["predictions"] = {"y": predict(about.standardise_inputs(X), "new_run")}
        groups["predictions_constant_data"] = {"X": (("new_run", "input"), np.asarray(X, dtype=float))}
        if Y is not None:
            groups["predictions_constant_data"]["y"] = _given(about, chosen, Y)
    f, y = chains[0].draw_prior(draws, chosen, generator)
    groups["prior"] = {"f": (_FUNCTIONS, _stack([f]))}
    groups["prior_predictive"] = {"y": _outputs(about, chosen, [y], "run")}
    by_row = [chain.log_likelihood for chain in chains if chain.log_likelihood is not None]
    if by_row:
        groups["log_likelihood"] = {"y": ((*_DRAWS, "run"), _stack(by_row))}
    positions = chosen.all_positions()
    observed = about.undo(about.known.source.read(positions), positions)
    groups["observed_data"] = {"y": (("run", *_kept(about, chosen)), observed.reshape(-1, *chosen.shape))}
    groups["constant_data"] = {"X": (("run", "input"), about.inputs)}
    said = {"created_by": "pyro_gprn", "outputs": f"{chosen.size} of {about.model.n_outputs} outputs"}
    return to_inference_data(groups, _coordinates(about, chosen, chains), said | chains[0].attributes)


def align(F: Tensor, reference: Tensor) -> Tensor:
    """Rotates (and mirrors) functions ``(…, N, K)`` so that each comes as close as possible to a reference ``(N, K)``.

    The posterior density is the same for F and F Q with any rotation Q, the weights rotated along, so that draws differ
    by rotations that mean nothing, and an average over unaligned draws misleads.

    >>> F = torch.randn(5, 2, dtype=torch.float64)
    >>> torch.allclose(align(F.flip(-1), F), F)
    True
    """
    return F @ _rotations(F, reference)


def _rotations(F: Tensor, reference: Tensor) -> Tensor:
    """The rotation ``Q`` of each of the functions ``(…, N, K)`` that :func:`align` uses, ``(…, K, K)``."""
    # Procrustes: the Q that minimises |F Q − R| is U Vᵀ of Fᵀ R = U S Vᵀ
    U, _, Vh = torch.linalg.svd(F.mT @ reference)
    return U @ Vh


def _stack(by_chain: Sequence[Tensor]) -> np.ndarray:
    return torch.stack(list(by_chain)).cpu().numpy()


def _posterior(about: PosteriorSource, chains: list[ChainDraws]) -> dict[str, Variable]:
    variables: dict[str, Variable] = {}
    for name, values in chains[0].hyperparameters.items():
        by_chain = _stack([chain.hyperparameters[name] for chain in chains])
        own = name.startswith(chains[0].of_each_output)
        variables[name] = ((*_DRAWS, *_own_dims(about, name, values.shape[1:], own)), by_chain)
    aligned = [align(chain.F, chains[0].F[0]) if chain.are_rotated else chain.F for chain in chains]
    variables["f"] = (_FUNCTIONS, _stack(aligned))
    return variables


def _own_dims(about: PosteriorSource, name: str, shape: Size, of_each_output: bool) -> tuple[str, ...]:
    """Names of the dimensions that a hyperparameter has."""
    model = about.model
    if of_each_output and shape[:1] == (model.n_outputs,):
        return (_EACH, *_own_dims(about, f"{name}_of_each", shape[1:], False))
    if shape == model.X.shape[1:]:
        return ("input",)
    return tuple(f"{name}_dim_{i}" for i in range(len(shape)))


def _sample_stats(chains: list[ChainDraws]) -> dict[str, Variable]:
    return {name: (_DRAWS, _stack([chain.sample_stats[name] for chain in chains])) for name in chains[0].sample_stats}


def _weights(
    about: PosteriorSource, chosen: OutputSelection, chains: list[ChainDraws], generator: torch.Generator
) -> Variable:
    """The weights, rotated along with the functions: F Q belongs to Qᵀ W."""
    rotated = []
    for chain in chains:
        weights = chain.weights(chosen, generator)
        if chain.are_rotated:
            weights = _rotations(chain.F, chains[0].F[0]).unsqueeze(1).mT @ weights
        rotated.append(chosen.reshape(weights))
    return (*_FUNCTIONS, *_kept(about, chosen)), _stack(rotated)


def _correlation(
    about: PosteriorSource, chosen: OutputSelection, at: Any, chains: list[ChainDraws], generator: torch.Generator
) -> Variable:
    X_at = about.standardise_inputs(at)
    by_chain = [chain.correlation(X_at, chosen, generator) for chain in chains]
    return (*_DRAWS, "at", "one_output", "other_output"), _stack(by_chain)


def _outputs(about: PosteriorSource, chosen: OutputSelection, by_chain: list[Tensor], rows: str) -> Variable:
    """Draws of outputs, of each chain ``(s, n, b)``, in the data's units."""
    values = about.undo(torch.stack(by_chain), chosen.all_positions())
    return (*_DRAWS, rows, *_kept(about, chosen)), values.reshape(*values.shape[:3], *chosen.shape)


def _given(about: PosteriorSource, chosen: OutputSelection, Y: Any) -> Variable:
    flat = np.asarray(Y, dtype=float).reshape(len(Y), -1)[:, chosen.all_positions().numpy()]
    return ("new_run", *_kept(about, chosen)), flat.reshape(len(flat), *chosen.shape)


def _modes(about: PosteriorSource, chosen: OutputSelection) -> tuple[list[str], list[Any]]:
    """Names and labels of the modes in which outputs are selected: those of Y, or one mode of all flattened outputs."""
    names, labels = about.output_dims()
    if chosen.is_by_mode:
        return names, labels
    return ["output"], [_flat_labels(labels)]


def _flat_labels(labels: Sequence[Sequence[Any]]) -> list[Any]:
    """Labels of the flattened outputs."""
    return list(labels[0]) if len(labels) == 1 else [", ".join(map(str, each)) for each in itertools.product(*labels)]


def _kept(about: PosteriorSource, chosen: OutputSelection) -> list[str]:
    """Names of the modes that the selected outputs have: those from which no int selects."""
    return [name for name, dropped in zip(_modes(about, chosen)[0], chosen.drops, strict=True) if not dropped]


def _coordinates(about: PosteriorSource, chosen: OutputSelection, chains: list[ChainDraws]) -> dict[str, Any]:
    coordinates: dict[str, Any] = {"latent": range(about.model.n_latents), "run": range(len(about.inputs))}
    if chains[0].of_each_output:
        coordinates[_EACH] = _flat_labels(about.output_dims()[1])
    for name, label, index in zip(*_modes(about, chosen), chosen.indices, strict=True):
        coordinates[name] = [label[i] for i in index.tolist()]
    return coordinates
