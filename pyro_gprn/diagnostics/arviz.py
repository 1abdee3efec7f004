"""Posterior, predictions and densities for ArviZ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor

from pyro_gprn.algebra.linalg import safe_cholesky
from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.likelihood import colour
from pyro_gprn.collapsed.weights import output_correlation, sample_weights
from pyro_gprn.diagnostics.arviz_versions import Variable, to_inference_data
from pyro_gprn.diagnostics.leave_one_out import DescribedDraws, describe_draws
from pyro_gprn.diagnostics.source import PosteriorSource
from pyro_gprn.outputs.selection import Outputs, OutputSelection
from pyro_gprn.prediction import posterior_predictive
from pyro_gprn.pyro_state import new_generator, white_noise

Groups = dict[str, dict[str, Variable]]
_DRAWS = ("chain", "draw")
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
      training inputs, each draw rotated to agree with the first; on request ``w``, the weights, and ``correlation``;
    - *posterior_predictive* and *predictions*: ``y`` at the training inputs, and at ``X``;
    - *prior* and *prior_predictive*: at the fitted hyperparameters;
    - *log_likelihood*: ``y``, for each row the log density of its outputs given all other rows, which leave-one-out by
      importance sampling needs where rows are not independent;
    - *sample_stats* (``lp``, ``log_q``, ``bound``), *observed_data*, *constant_data*.

    Restarts are chains. Outputs are in the data's units and have their names; log-likelihoods are the model's, for
    standardised outputs, times the power of the likelihood. Where the fit has a scale for each output, draws of outputs
    given the data have it too; prior and log-likelihood are those that the network was trained by, without it.

    :param source: a fitted :class:`~pyro_gprn.GPRNRegressor`, ``(model, guide)``, ``(model, mcmc)`` or
        ``(model, draws)``, of a collapsed model.
    :param X: new inputs, ``(N*, P)``.
    :param Y: outputs observed at ``X``, if any, ``(N*, …)``; they are kept in *predictions_constant_data*.
    :param draws: how many draws in each chain. (Of MCMC all are used.)
    :param outputs: a selection of outputs, as for :class:`~pyro_gprn.PosteriorPredictive`; by default all, or an evenly
        spread selection if all would be more than ten million numbers.
    :param weights: whether to include the weights of these outputs, ``(chain, draw, run, latent, …)``.
    :param correlation_at: inputs ``(m, P)`` at which to include the correlation between these outputs.
    :param seed: seed of all draws.

    >>> from pyro_gprn import GPRNRegressor
    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> r = GPRNRegressor(1, steps=10, restarts=2, seed=0, progress=False).fit(X, np.sin(X + np.arange(3)))
    >>> data = to_arviz(r, X=X[:4], draws=20)
    >>> data["posterior_predictive"]["y"].dims, data["predictions"]["y"].shape
    (('chain', 'draw', 'run', 'output'), (2, 20, 4, 3))
    """
    about = PosteriorSource.of(source)
    about.check_collapsed()
    chosen = about.choose(outputs, draws)
    generator = new_generator(seed)
    described = [describe_draws(model, posterior, draws, generator=generator) for model, posterior in about.chains]
    groups: Groups = {"posterior": _posterior(about, described), "sample_stats": _sample_stats(about, described)}
    if weights:
        groups["posterior"]["w"] = _weights(about, chosen, described, generator)
    if correlation_at is not None:
        groups["posterior"]["correlation"] = _correlation(about, chosen, correlation_at, described, generator)
    groups["posterior_predictive"] = {"y": _predict(about, described, chosen, about.model.X, "run", generator)}
    if X is not None:
        X_new = about.standardise_inputs(X)
        groups["predictions"] = {"y": _predict(about, described, chosen, X_new, "new_run", generator)}
        groups["predictions_constant_data"] = {"X": (("new_run", "input"), np.asarray(X, dtype=float))}
        if Y is not None:
            groups["predictions_constant_data"]["y"] = _given(about, chosen, Y)
    groups |= _prior(about, chosen, draws, generator)
    groups["log_likelihood"] = {"y": ((*_DRAWS, "run"), _stack([each.by_row for each in described]))}
    positions = chosen.all_positions()
    observed = about.undo(about.known.source.read(positions), positions)
    groups["observed_data"] = {"y": (("run", *_kept(about, chosen)), observed.reshape(-1, *chosen.shape))}
    groups["constant_data"] = {"X": (("run", "input"), about.inputs)}
    return to_inference_data(groups, _coordinates(about, chosen), _attributes(about, chosen))


def align(F: Tensor, reference: Tensor) -> Tensor:
    """Rotates (and mirrors) functions ``(…, N, K)`` so that each comes as close as possible to a reference ``(N, K)``.

    The posterior density is the same for F and F Q with any rotation Q, so that draws differ by rotations that mean
    nothing, and an average over unaligned draws misleads.

    >>> F = torch.randn(5, 2, dtype=torch.float64)
    >>> torch.allclose(align(F.flip(-1), F), F)
    True
    """
    # Procrustes: the Q that minimises |F Q − R| is U Vᵀ of Fᵀ R = U S Vᵀ
    U, _, Vh = torch.linalg.svd(F.mT @ reference)
    return F @ (U @ Vh)


def _stack(by_chain: list[Tensor]) -> np.ndarray:
    return torch.stack(by_chain).cpu().numpy()


def _posterior(about: PosteriorSource, described: list[DescribedDraws]) -> dict[str, Variable]:
    variables: dict[str, Variable] = {}
    for name, values in described[0].hyperparameters.items():
        by_chain = _stack([each.hyperparameters[name] for each in described])
        variables[name] = ((*_DRAWS, *_own_dims(about, name, values.shape[1:])), by_chain)
    reference = described[0].F[0]
    aligned = _stack([align(each.F, reference) for each in described])
    variables["f"] = ((*_DRAWS, "run", "latent"), aligned)
    return variables


def _own_dims(about: PosteriorSource, name: str, shape: Size) -> tuple[str, ...]:
    """Names of the dimensions that a hyperparameter has."""
    model = about.model
    if model.own_kernels and name.startswith(("kernel_w", "noise_y")) and shape[:1] == (model.n_outputs,):
        return (_EACH, *_own_dims(about, f"{name}_of_each", shape[1:]))
    if shape == model.X.shape[1:]:
        return ("input",)
    return tuple(f"{name}_dim_{i}" for i in range(len(shape)))


def _sample_stats(about: PosteriorSource, described: list[DescribedDraws]) -> dict[str, Variable]:
    log_joint = _stack([each.log_joint for each in described])
    log_q = np.full_like(log_joint, np.nan)
    for chain, (_, posterior) in enumerate(about.chains):
        if isinstance(posterior, CollapsedGuide):
            log_q[chain] = posterior.posterior().log_prob(described[chain].draws.V).detach().cpu().numpy()
    return {"lp": (_DRAWS, log_joint), "log_q": (_DRAWS, log_q), "bound": (_DRAWS, log_joint - log_q)}


def _sites(described: DescribedDraws) -> dict[str, Tensor]:
    """The draws as :func:`~pyro_gprn.posterior_predictive` takes them, so that predictions come from the same draws."""
    return {"v": described.draws.V, **described.draws.hyperparameters}


def _predict(
    about: PosteriorSource,
    described: list[DescribedDraws],
    chosen: OutputSelection,
    X_new: Tensor,
    rows: str,
    generator: torch.Generator,
) -> Variable:
    by_chain = []
    for chain, each in enumerate(described):
        predictive = posterior_predictive(
            about.chains[chain][0],
            _sites(each),
            X_new,
            about.known,
            output_scales=about.scales(chain),
            generator=generator,
        )
        by_chain.append(predictive.sample(len(each.F), chosen.outputs).reshape(len(each.F), len(X_new), -1))
    values = about.undo(torch.stack(by_chain), chosen.all_positions())
    return (*_DRAWS, rows, *_kept(about, chosen)), values.reshape(*values.shape[:3], *chosen.shape)


def _weights(
    about: PosteriorSource, chosen: OutputSelection, described: list[DescribedDraws], generator: torch.Generator
) -> Variable:
    by_chain = [
        sample_weights(model, _sites(each), model.X, 0, chosen.outputs, about.known, generator=generator)
        for (model, _), each in zip(about.chains, described, strict=True)
    ]
    return (*_DRAWS, "run", "latent", *_kept(about, chosen)), _stack(by_chain)


def _correlation(
    about: PosteriorSource,
    chosen: OutputSelection,
    at: Any,
    described: list[DescribedDraws],
    generator: torch.Generator,
) -> Variable:
    X_at = about.standardise_inputs(at)
    by_chain = []
    for (model, _), each in zip(about.chains, described, strict=True):
        sites = _sites(each)
        alone = [{name: draws[i : i + 1] for name, draws in sites.items()} for i in range(len(each.F))]
        found = [
            output_correlation(model, one, X_at, chosen.outputs, about.known, generator=generator) for one in alone
        ]
        by_chain.append(torch.stack(found))
    return (*_DRAWS, "at", "one_output", "other_output"), _stack(by_chain)


@torch.no_grad()
def _prior(about: PosteriorSource, chosen: OutputSelection, n_draws: int, generator: torch.Generator) -> Groups:
    """Draws from the prior at the fitted hyperparameters of the first chain."""
    model, positions = about.model, chosen.all_positions()
    Lf, Kw, noise = model.at_centre(model.covariances)
    F = Lf @ white_noise(n_draws, model.n_rows, model.n_latents, like=Lf, generator=generator)
    root = safe_cholesky(model.output_covariance(F, Kw, noise), name="the covariance of the outputs")
    root = root[:, positions] if model.own_kernels else root
    white = white_noise(n_draws, model.n_rows, len(positions), like=root, generator=generator)
    y = colour(root, white, by_output=model.own_kernels)
    values = about.undo(y, positions).reshape(1, n_draws, model.n_rows, *chosen.shape)
    return {
        "prior": {"f": ((*_DRAWS, "run", "latent"), F[None].cpu().numpy())},
        "prior_predictive": {"y": ((*_DRAWS, "run", *_kept(about, chosen)), values)},
    }


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


def _coordinates(about: PosteriorSource, chosen: OutputSelection) -> dict[str, Any]:
    coordinates: dict[str, Any] = {"latent": range(about.model.n_latents), "run": range(len(about.inputs))}
    if about.model.own_kernels:
        coordinates[_EACH] = _flat_labels(about.output_dims()[1])
    for name, label, index in zip(*_modes(about, chosen), chosen.indices, strict=True):
        coordinates[name] = [label[i] for i in index.tolist()]
    return coordinates


def _attributes(about: PosteriorSource, chosen: OutputSelection) -> dict[str, Any]:
    said = f"{chosen.size} of {about.model.n_outputs} outputs"
    return {"created_by": "pyro_gprn", "outputs": said, "likelihood_power": float(about.model.likelihood_power)}
