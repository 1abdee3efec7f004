"""Posterior, predictions and densities for ArviZ."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.weights import output_correlation, sample_weights
from pyro_gprn.diagnostics.arviz_versions import Variable, to_inference_data
from pyro_gprn.diagnostics.leave_one_out import DescribedDraws, describe_draws
from pyro_gprn.diagnostics.source import PosteriorSource
from pyro_gprn.outputs.selection import Outputs, OutputSelection
from pyro_gprn.prediction import posterior_predictive
from pyro_gprn.pyro_state import isolated, own_randomness

Groups = dict[str, dict[str, Variable]]
_DRAWS = ("chain", "draw")


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
    """Everything ArviZ can look at: InferenceData of ArviZ 0.x, a DataTree of 1.x.

    - *posterior*: hyperparameters; ``f``, the functions at the training inputs, rotated to agree with each other; on
      request ``w`` and ``correlation``;
    - *posterior_predictive* and *predictions*: ``y`` at the training inputs, and at ``X``;
    - *prior* and *prior_predictive*: at the fitted hyperparameters;
    - *log_likelihood*: ``y``, of each row given all others, as leave-one-out by importance sampling needs it where rows
      are not independent;
    - *sample_stats* (``lp``, ``log_q``, ``bound``), *observed_data*, *constant_data*.

    Restarts are chains. Outputs are in the data's units and under their names; log-likelihoods are those of the model,
    of standardised outputs, times its weight.

    :param source: a fitted :class:`~pyro_gprn.GPRNRegressor`, ``(model, guide)``, ``(model, mcmc)`` or
        ``(model, draws)``, of a collapsed model.
    :param X: new inputs, ``(N*, P)``.
    :param Y: outputs observed there, if they are: *predictions_constant_data* keeps them beside.
    :param draws: how many in each chain. (Of MCMC all are used.)
    :param outputs: which outputs, as for :func:`~pyro_gprn.posterior_predictive`; by default all, or an even selection
        where that would be more than ten million numbers.
    :param weights: whether the weights of these outputs are wanted too, ``(chain, draw, run, latent, …)``.
    :param correlation_at: inputs at which the correlation between these outputs is wanted, ``(m, P)``.
    :param seed: of all draws.

    >>> from pyro_gprn import GPRNRegressor
    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> r = GPRNRegressor(1, steps=10, restarts=2, seed=0, progress=False).fit(X, np.sin(X + np.arange(3)))
    >>> data = to_arviz(r, X=X[:4], draws=20)
    >>> data["posterior_predictive"]["y"].dims, data["predictions"]["y"].shape
    (('chain', 'draw', 'run', 'output'), (2, 20, 4, 3))
    """
    source = PosteriorSource.of(source)
    chosen = source.choose(outputs, draws)
    with own_randomness(seed):
        described = [describe_draws(model, posterior, draws) for model, posterior in source.chains]
        posterior, statistics = _posterior(source, described), _sample_stats(source, described)
        groups: Groups = {"posterior": posterior, "sample_stats": statistics}
        if weights:
            posterior["w"] = _weights(source, chosen, len(described[0].F))
        if correlation_at is not None:
            posterior["correlation"] = _correlation(source, chosen, correlation_at, len(described[0].F))
        groups["posterior_predictive"] = {"y": _predict(source, described, chosen, source.model.X, "run")}
        if X is not None:
            groups["predictions"] = {
                "y": _predict(source, described, chosen, source.standardise_inputs(X), "new_run")
            }
            groups["predictions_constant_data"] = {"X": (("new_run", "input"), np.asarray(X, dtype=float))}
            if Y is not None:
                groups["predictions_constant_data"]["y"] = _given(source, chosen, Y)
        groups |= _prior(source, chosen, draws)
    groups["log_likelihood"] = {"y": ((*_DRAWS, "run"), _stack([each.by_row for each in described]))}
    positions = _positions(chosen, source)
    observed = source.undo(source.Y.flatten(1)[:, positions], positions)
    groups["observed_data"] = {"y": (("run", *_kept(source, chosen)), observed.reshape(-1, *chosen.shape))}
    groups["constant_data"] = {"X": (("run", "input"), source.inputs)}
    return to_inference_data(groups, _coordinates(source, chosen), _attributes(source, chosen))


def align(F: Tensor, reference: Tensor) -> Tensor:
    """Functions ``(…, N, K)``, each rotated (and mirrored) to come as near as it can to a reference ``(N, K)``.

    The posterior is the same for F and F Q: rotations mean nothing, and averages over them mislead.

    >>> F = torch.randn(5, 2, dtype=torch.float64)
    >>> torch.allclose(align(F.flip(-1), F), F)
    True
    """
    # Procrustes: the Q that minimises |F Q − R| is U Vᵀ of Fᵀ R = U S Vᵀ
    U, _, Vh = torch.linalg.svd(F.mT @ reference)
    return F @ (U @ Vh)


def _stack(by_chain: list[Tensor]) -> np.ndarray:
    return torch.stack(by_chain).cpu().numpy()


def _posterior(source: PosteriorSource, described: list[DescribedDraws]) -> dict[str, Variable]:
    variables: dict[str, Variable] = {}
    for name, values in described[0].hyperparameters.items():
        by_chain = _stack([each.hyperparameters[name] for each in described])
        dims = ("input",) if values.shape[1:] == source.model.X.shape[1:] else _own_dims(name, values.dim() - 1)
        variables[name] = ((*_DRAWS, *dims), by_chain)
    reference = described[0].F[0]
    aligned = _stack([align(each.F, reference) for each in described])
    variables["f"] = ((*_DRAWS, "run", "latent"), aligned)
    return variables


def _own_dims(name: str, n: int) -> tuple[str, ...]:
    return tuple(f"{name}_dim_{i}" for i in range(n))


def _sample_stats(source: PosteriorSource, described: list[DescribedDraws]) -> dict[str, Variable]:
    log_joint = _stack([each.log_joint for each in described])
    log_q = np.full_like(log_joint, np.nan)
    for chain, (_, posterior) in enumerate(source.chains):
        if isinstance(posterior, CollapsedGuide):
            q: Distribution = posterior.posterior()
            log_q[chain] = q.log_prob(described[chain].sites["v"]).detach().cpu().numpy()
    return {"lp": (_DRAWS, log_joint), "log_q": (_DRAWS, log_q), "bound": (_DRAWS, log_joint - log_q)}


def _predict(
    source: PosteriorSource, described: list[DescribedDraws], chosen: OutputSelection, X_new: Tensor, rows: str
) -> Variable:
    by_chain = []
    for (model, _), each in zip(source.chains, described, strict=True):
        predictive = posterior_predictive(model, each.sites, X_new, source.Y)
        by_chain.append(predictive.sample(len(each.F), chosen.outputs).reshape(len(each.F), len(X_new), -1))
    values = source.undo(torch.stack(by_chain), _positions(chosen, source))
    return (*_DRAWS, rows, *_kept(source, chosen)), values.reshape(*values.shape[:3], *chosen.shape)


def _weights(source: PosteriorSource, chosen: OutputSelection, n_draws: int) -> Variable:
    by_chain = [
        sample_weights(model, _guide(posterior), model.X, n_draws, chosen.outputs)
        for model, posterior in source.chains
    ]
    return (*_DRAWS, "run", "latent", *_kept(source, chosen)), _stack(by_chain)


def _correlation(source: PosteriorSource, chosen: OutputSelection, at: Any, n_draws: int) -> Variable:
    X_at = source.standardise_inputs(at)
    by_chain = []
    for model, posterior in source.chains:
        each = [output_correlation(model, _guide(posterior), X_at, chosen.outputs, n_draws=1) for _ in range(n_draws)]
        by_chain.append(torch.stack(each))
    return (*_DRAWS, "at", "one_output", "other_output"), _stack(by_chain)


def _guide(posterior: Any) -> CollapsedGuide:
    if not isinstance(posterior, CollapsedGuide):
        raise ValueError(f"weights and correlations need a CollapsedGuide; got {type(posterior).__name__}")
    return posterior


@torch.no_grad()
def _prior(source: PosteriorSource, chosen: OutputSelection, n_draws: int) -> Groups:
    """At the fitted hyperparameters of the first chain."""
    model, positions = source.model, _positions(chosen, source)
    with isolated():
        Lf, Kw, noise = model.guided(model.covariances)
    F = Lf @ torch.randn(n_draws, model.n_rows, model.n_latents).to(Lf)
    C = model.output_covariance(F, Kw, noise)
    y = torch.linalg.cholesky(C) @ torch.randn(n_draws, model.n_rows, len(positions)).to(C)
    values = source.undo(y, positions).reshape(1, n_draws, model.n_rows, *chosen.shape)
    return {
        "prior": {"f": ((*_DRAWS, "run", "latent"), F[None].cpu().numpy())},
        "prior_predictive": {"y": ((*_DRAWS, "run", *_kept(source, chosen)), values)},
    }


def _given(source: PosteriorSource, chosen: OutputSelection, Y: Any) -> Variable:
    flat = np.asarray(Y, dtype=float).reshape(len(Y), -1)[:, _positions(chosen, source).cpu().numpy()]
    return ("new_run", *_kept(source, chosen)), flat.reshape(len(flat), *chosen.shape)


def _positions(chosen: OutputSelection, source: PosteriorSource) -> Tensor:
    positions = chosen.positions(slice(None))
    return torch.arange(source.model.n_outputs) if isinstance(positions, slice) else positions


def _kept(source: PosteriorSource, chosen: OutputSelection) -> list[str]:
    """Names of the modes of which more than one number was chosen (or a list of one)."""
    return [name for name, dropped in zip(source.output_dims()[0], chosen.drops, strict=True) if not dropped]


def _coordinates(source: PosteriorSource, chosen: OutputSelection) -> dict[str, Any]:
    names, labels = source.output_dims()
    coordinates: dict[str, Any] = {"latent": range(source.model.n_latents), "run": range(len(source.Y))}
    for name, label, index in zip(names, labels, chosen.indices, strict=True):
        coordinates[name] = [label[i] for i in index.tolist()]
    return coordinates


def _attributes(source: PosteriorSource, chosen: OutputSelection) -> dict[str, Any]:
    said = f"{chosen.size} of {source.model.n_outputs} outputs"
    return {"created_by": "pyro_gprn", "outputs": said, "likelihood_weight": float(source.model.likelihood_weight)}
