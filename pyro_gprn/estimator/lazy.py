"""Predictions of a fit whose outputs are not in memory: dask arrays, made chunk by chunk when they are computed.

What depends on the new inputs is computed at once, and is small. A worker gets that and one chunk of Y, which has all
rows of its outputs: it tells their means, scales and holes, and the predictions are those of a fit that has these
outputs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.collapsed.output_scales import ScaleRule
from pyro_gprn.collapsed.prediction import CollapsedPredictive, Wanted
from pyro_gprn.estimator.fitted import FittedNetwork
from pyro_gprn.estimator.predicted import PredictedOutputs
from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.outputs.extra import load
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.lazy import MOST_BYTES
from pyro_gprn.outputs.memory import shared_tensor
from pyro_gprn.outputs.one_pass import BlockStandard, statistics_of_block, without_outputs
from pyro_gprn.pyro_state import new_generator, new_seed, one_torch_thread


@dataclass(frozen=True)
class ChunkPredictor:
    """What a worker needs to predict the outputs of a chunk at some new inputs.

    :param predictive: predictions at these inputs, without outputs.
    :param known: statistics of the training outputs, without outputs.
    :param standard: how outputs are standardised.
    :param scales: what tells their scales; None if they have one for all.
    :param scaling: of the inputs.
    :param n_new: how many new inputs.
    :param dtype: the type of the predictions.
    """

    predictive: CollapsedPredictive
    known: OutputStatistics
    standard: BlockStandard
    scales: ScaleRule | None
    scaling: Scaling
    n_new: int
    dtype: torch.dtype

    @classmethod
    def of(cls, fitted: FittedNetwork, predictive: Any, wanted: Wanted, n_draws: int | None = None) -> ChunkPredictor:
        """For what is wanted of a fit's predictions at some inputs."""
        source: Any = fitted.known.source
        known = without_outputs(fitted.known)
        scales: Any = None if wanted == "mean" else fitted.output_scales
        scales = None if scales is None else scales.of_outputs(known)
        settled = predictive.settle(wanted, n_draws)
        return cls(settled, known, source.standard, scales, fitted.scaling, len(predictive.X_new), fitted.outputs.dtype)

    def fill(
        self,
        block: np.ndarray,
        shape: tuple[int, ...],
        compute: Callable[[PredictedOutputs, Tensor], Tensor],
        *seed: int,
    ) -> np.ndarray:
        """Predictions of a chunk ``(N, b_1, …)``, as ``(…, N*, b_1, …)``; NaN for outputs without an observation.

        :param shape: of the predictions, before that of the chunk's outputs.
        :param compute: takes the predictions of the outputs that have an observation, and which these are, ``(b,)``.
        :param seed: what the seed of random numbers depends on, for draws.
        """
        values = shared_tensor(np.ascontiguousarray(block).reshape(len(block), -1))
        is_present = ~values.isnan().all(0)
        result = torch.full((*shape, values.shape[1]), torch.nan, dtype=self.dtype)
        if is_present.any():
            complete = bool(is_present.all())
            with one_torch_thread(), torch.no_grad():  # dask has a thread for each core already
                found = compute(self._predicted(values if complete else values[:, is_present], seed), is_present)
            if complete:
                result = found.to(self.dtype)
            else:
                result[..., is_present] = found.to(self.dtype)
        return result.reshape(*shape, *block.shape[1:]).numpy()

    def _predicted(self, values: Tensor, seed: tuple[int, ...]) -> PredictedOutputs:
        standardized, mean, scale = self.standard.apply(values)
        known = statistics_of_block(self.known, standardized)
        scales = None if self.scales is None else self.scales.of_outputs(known).at(slice(None))
        generator = (
            new_generator(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 2)) if seed else None
        )
        parts = [(self.predictive.of_outputs(known, scales, generator), slice(None))]
        scaling = self.scaling._replace(y_mean=mean, y_scale=scale)
        return PredictedOutputs(parts, scaling, (self.n_new, values.shape[1]), self.dtype)


def predict_lazily(fitted: FittedNetwork, X: Tensor, *, with_deviation: bool) -> list[Any]:
    """The mean at new inputs ``(N*, P)``, and the standard deviation if it is wanted: dask arrays ``(N*, d_1, …)``."""
    wanted: Wanted = "variance" if with_deviation else "mean"
    return _by_rows(fitted, X, wanted, 2 if with_deviation else 1, _mean_of_chunk)


def quantiles_lazily(fitted: FittedNetwork, X: Tensor, probabilities: list[float]) -> list[Any]:
    """Quantiles at new inputs ``(N*, P)``: a dask array ``(N*, d_1, …)`` for each probability."""
    return _by_rows(fitted, X, "marginal", len(probabilities), _quantiles_of_chunk, probabilities=probabilities)


def log_density_lazily(fitted: FittedNetwork, X: Tensor, Y: Any) -> Any:
    """The log density of outputs ``(N*, d_1, …)``, a dask array, at new inputs: a dask array like them."""
    return _by_rows(fitted, X, "marginal", 1, _density_of_chunk, new_outputs=Y)[0]


def sample_lazily(fitted: FittedNetwork, X: Tensor, n_draws: int, seed: int | None) -> Any:
    """Joint draws at new inputs: a dask array ``(n_draws, N*, d_1, …)``.

    In one draw all chunks have the same latent functions, given which their outputs are independent. So the draws are
    joint over all outputs. They depend on the chunks: other chunks give other draws with the same seed.
    """
    own_seed = new_seed() % 2**31 if seed is None else seed
    predictive: Any = fitted.predictive(X, new_generator(own_seed))
    predictor = ChunkPredictor.of(fitted, predictive, "joint", n_draws)
    at_once = max(1, MOST_BYTES // (8 * len(X) * _largest_chunk(fitted)))
    parts = []
    for start in range(0, n_draws, at_once):
        some = slice(start, min(start + at_once, n_draws))
        parts.append(_on_chunks(fitted, predictor, some.stop - some.start, _draws_of_chunk, some=some, seed=own_seed))
    return load("dask.array").concatenate(parts, axis=0)


def _by_rows(
    fitted: FittedNetwork, X: Tensor, wanted: Wanted, n: int, function: Callable[..., np.ndarray], **settings: Any
) -> list[Any]:
    """``n`` arrays that come together, some new inputs at a time."""
    at_once = max(1, MOST_BYTES // (8 * n * _largest_chunk(fitted)))
    new_outputs, parts = settings.pop("new_outputs", None), []
    for rows in (slice(start, start + at_once) for start in range(0, len(X), at_once)):
        for predictive, some in fitted.by_block(X[rows], scaled=False):
            predictor = ChunkPredictor.of(fitted, predictive, wanted)
            given = None if new_outputs is None else new_outputs[rows][some]
            parts.append(_on_chunks(fitted, predictor, n, function, given, **settings))
    both = load("dask.array").concatenate(parts, axis=1)
    return [both[i] for i in range(n)]


def _on_chunks(
    fitted: FittedNetwork,
    predictor: ChunkPredictor,
    n: int,
    function: Callable[..., np.ndarray],
    new_outputs: Any = None,
    **settings: Any,
) -> Any:
    """A dask array ``(n, N*, d_1, …)`` of what a function makes of each chunk of Y."""
    outputs: Any = fitted.outputs
    Y, dask_array = outputs.array, load("dask.array")
    modes = tuple(f"d{mode}" for mode in range(1, Y.ndim))
    arguments = [Y, ("rows", *modes)]
    if new_outputs is not None:
        chunks = {0: -1} | dict(enumerate(Y.chunks[1:], start=1))
        arguments += [new_outputs.reshape(len(new_outputs), *Y.shape[1:]).rechunk(chunks), ("new", *modes)]
    if "seed" in settings:  # which is another one for each chunk
        n_chunks = Y.numblocks[1:]
        numbers = np.arange(np.prod(n_chunks)).reshape(n_chunks)
        arguments += [dask_array.from_array(numbers, chunks=1), modes]
    once = load("dask").delayed(predictor, name=f"predictor-{uuid4().hex}", traverse=False)
    dtype = np.dtype(str(predictor.dtype).removeprefix("torch."))
    return dask_array.blockwise(
        function,
        ("of", "new", *modes),
        *arguments,
        new_axes={"of": n} | ({"new": predictor.n_new} if new_outputs is None else {}),
        concatenate=True,
        align_arrays=False,
        predictor=once,
        n=n,
        dtype=dtype,
        meta=np.empty((0,) * (Y.ndim + 1), dtype),
        **settings,
    )


def _mean_of_chunk(block: np.ndarray, predictor: ChunkPredictor, n: int) -> np.ndarray:
    def compute(predicted: PredictedOutputs, _: Tensor) -> Tensor:
        result = torch.empty(n, *predicted.shape, dtype=predicted.dtype)
        result[0] = predicted.mean(result[1] if n == 2 else None)
        return result

    return predictor.fill(block, (n, predictor.n_new), compute)


def _quantiles_of_chunk(block: np.ndarray, predictor: ChunkPredictor, n: int, probabilities: list[float]) -> np.ndarray:
    return predictor.fill(block, (n, predictor.n_new), lambda predicted, _: predicted.quantiles(probabilities))


def _draws_of_chunk(
    block: np.ndarray, number: np.ndarray, predictor: ChunkPredictor, n: int, some: slice, seed: int
) -> np.ndarray:
    of_some = replace(predictor, predictive=predictor.predictive.some_draws(some))
    seeds = seed, int(number.flat[0]), some.start
    return of_some.fill(block, (n, predictor.n_new), lambda predicted, _: predicted.sample(n), *seeds)


def _density_of_chunk(block: np.ndarray, new: np.ndarray, predictor: ChunkPredictor, n: int) -> np.ndarray:
    values = shared_tensor(np.ascontiguousarray(new).reshape(len(new), -1)).double()
    return predictor.fill(
        block, (n, predictor.n_new), lambda predicted, present: predicted.log_density(values[:, present])[None]
    )


def _largest_chunk(fitted: FittedNetwork) -> int:
    """The most outputs that a chunk has."""
    outputs: Any = fitted.outputs
    return int(np.prod([max(sizes) for sizes in outputs.array.chunks[1:]]))
