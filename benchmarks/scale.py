"""The whole of it in one table: what a fit and a prediction cost as outputs, rows and latent functions grow.

    python benchmarks/scale.py [--results scale.jsonl] [--most 1e8] [--folder .] [--picture docs/scale.png]

Every row has ratios that were measured in one run: a fit and the mean of a slice of outputs at 8 new inputs, over two
passes over Y by the same dask graph, one that only reads (its sum) and one that makes the bare Y Yᵀ. Outputs are made
by the graph, chunk by chunk, and never stored. The ratios leave the training out, which is the same for any D: it is
the time of the same fit to 1,000 outputs.
Methods that hold Y in memory have it made first, outside of what is timed; their bare pass is that over the array.
Other methods stop at the number of outputs that they can still do within a minute or two. A row that is in the file of
results is not measured again. The last lines print the table, and the picture is drawn from the same file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import torch

from pyro_gprn import GPRN, ClosedFormELBO, GPRNRegressor, KroneckerGuide, posterior_predictive
from pyro_gprn.baselines import HOGP, ReducedGP
from pyro_gprn.experiments.grid import run_missing
from pyro_gprn.experiments.reproduction.memory import forget_peak, peak_memory
from pyro_gprn.experiments.results import read
from pyro_gprn.outputs.lazy import Chunk, DaskOutputs

#: Numbers in a chunk of generated outputs: 64 MB of float32.
CHUNK_NUMBERS = 2**24
#: Outputs in the slice that is predicted, at so many new inputs.
SLICE, N_NEW = 10_000, 8
#: Outputs of the fit that tells how long the training takes.
FEW = 1000
#: Steps of every fit: the ratio is about reading Y, and of training all methods get as much.
STEPS = 100
#: The collapsed network, its outputs in a store on a disk, which is read in place of made.
FROM_DISK = "collapsed, from a store"
#: The most outputs that a method is given: it holds Y in memory, or its step grows with D.
MOST = {"kronecker": 10**6, "mean-field": 10**6, "mixture": 10**6, "full mean": 10**4, "PCA-GP": 10**6, "HOGP": 10**3}


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    method: str
    n_outputs: int
    n_rows: int = 64
    n_latents: int = 10


def rows(most: int, with_disk: bool = False) -> list[Row]:
    """All rows: outputs from 10² to the most, rows from 32 to 1,000, functions from 2 to 50, by every method."""
    powers = [10**power for power in range(2, 9) if 10**power <= most]
    every = [Row("collapsed", D) for D in powers]
    every += [Row(FROM_DISK, max(powers))] if with_disk else []
    every += [Row("collapsed", 10**5, n_rows=N) for N in (32, 128, 256, 500, 1000)]
    every += [Row("collapsed", 10**5, n_latents=K) for K in (2, 5, 20, 50)]
    return every + [Row(method, D) for method, limit in MOST.items() for D in powers if limit >= D]


def inputs(n_rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n_rows, 3))


def bumps(X: np.ndarray, n_outputs: int, block_info: Any = None) -> np.ndarray:
    """One chunk of generated outputs: bumps on a line, whose place, width and height depend on the inputs."""
    start, stop = block_info[None]["array-location"][1]
    points = (np.arange(start, stop) / n_outputs).astype(np.float32)
    place, width, height = 0.5 + 0.15 * X[:, 0], 0.1 * np.exp(0.3 * X[:, 1]), 1 + 0.3 * X[:, 2]
    result = np.empty((len(X), len(points)), dtype=np.float32)
    for row, (a, b, c) in enumerate(zip(place, width, height, strict=True)):  # in place: no second array
        np.subtract(points, np.float32(a), out=result[row])
        result[row] *= np.float32(1 / b)
        np.square(result[row], out=result[row])
        result[row] *= np.float32(-0.5)
        np.exp(result[row], out=result[row])
        result[row] *= np.float32(c)
    return result


def generated(n_outputs: int, n_rows: int) -> Any:
    """The outputs as a dask array: nothing of them is stored."""
    chunks = ((n_rows,), da.core.normalize_chunks(max(1, CHUNK_NUMBERS // n_rows), (n_outputs,))[0])
    made = partial(bumps, inputs(n_rows), n_outputs)
    return da.map_blocks(made, chunks=chunks, dtype=np.float32, meta=np.empty((0, 0), np.float32))


def from_disk(Y: Any, path: Path) -> Any:
    """The outputs written to a zarr store, in the chunks that they have, and read from there."""
    if not path.exists():
        Y.to_zarr(path, zarr_array_kwargs={"compressors": None})
    return da.from_zarr(path)


def estimator(row: Row) -> Any:
    shared = {"steps": STEPS, "seed": 0, "progress": False}
    if row.method == "PCA-GP":
        return ReducedGP(n_components=row.n_latents, seed=0)
    if row.method == "HOGP":
        return HOGP(seed=0, steps=STEPS)
    if row.method == "full mean":
        return FullMean(row.n_latents)
    shared |= {"standardize": "field"}
    if row.method in ("collapsed", FROM_DISK):
        return GPRNRegressor(row.n_latents, starts=["independent"], kernel_w="rbf", selection=False, **shared)
    return GPRNRegressor(row.n_latents, inference=row.method, **shared)


class FullMean:
    """The paper's posterior with its mean in full, (N, K, D), trained by Adam on the closed-form bound."""

    def __init__(self, n_latents: int) -> None:
        self._n_latents = n_latents

    def fit(self, X: np.ndarray, Y: np.ndarray) -> FullMean:
        self.model = GPRN(torch.from_numpy(X), Y.shape[1], self._n_latents)
        self.guide = KroneckerGuide(self.model, mean="full", output_factors="isotropic")
        loss, outputs = ClosedFormELBO()(self.model, self.guide), torch.from_numpy(Y)
        optimiser = torch.optim.Adam(loss.parameters(), lr=0.01)
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss(outputs).backward()
            optimiser.step()
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return posterior_predictive(self.model, self.guide, torch.from_numpy(X)).mean().detach().numpy()


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def read_all(Y: Any) -> None:
    """The sum of Y, by the graph that a fit has: a pass that does nothing but read."""
    DaskOutputs(Y).total(lambda block, chunk: block.sum(dtype=np.float64), sum)


def gram_of(block: np.ndarray, chunk: Chunk) -> np.ndarray:
    """``Y Yᵀ`` of a chunk in float64, in pieces that a cache holds."""
    pieces = (block[:, start : start + 8192].astype(np.float64) for start in range(0, block.shape[1], 8192))
    return sum((torch.from_numpy(piece) @ torch.from_numpy(piece).mT).numpy() for piece in pieces)


def bare_pass(Y: Any) -> None:
    """``Y Yᵀ``, by the graph that a fit has: what a fit needs at the least."""
    DaskOutputs(Y).total(gram_of, sum)


def fit_and_predict(row: Row, Y: Any) -> None:
    X_new = inputs(row.n_rows + N_NEW)[row.n_rows :]
    predicted = estimator(row).fit(inputs(row.n_rows), Y).predict(X_new)[:, :SLICE]
    np.asarray(predicted)


def measure(row: Row, folder: Path | None = None) -> dict[str, Any]:
    """Seconds of a bare pass, of the training alone, and of a fit and a prediction; and the peak of memory."""
    few = generated(min(FEW, row.n_outputs), row.n_rows)
    Y = generated(row.n_outputs, row.n_rows)
    if row.method == FROM_DISK and folder is not None:
        Y = from_disk(Y, folder / f"{row.n_outputs}.zarr")
    elif row.method != "collapsed":
        few, Y = few.compute(), Y.compute()
    fit_and_predict(row, few)  # imports, and memory that torch takes once
    in_dask = da.from_array(Y) if isinstance(Y, np.ndarray) else Y
    result: dict[str, Any] = {"read": seconds(lambda: read_all(in_dask)), "pass": seconds(lambda: bare_pass(in_dask))}
    result["training"] = seconds(lambda: fit_and_predict(row, few))
    forget_peak()
    return result | {"seconds": seconds(lambda: fit_and_predict(row, Y)), "memory": peak_memory()}


def beyond_training(result: dict[str, Any], what: str) -> float:
    """What a fit and a prediction take beyond the training, in passes that read or make ``Y Yᵀ``."""
    return max(0.0, result["seconds"] - result["training"]) / result[what]


def table(results: dict[Row, dict[str, Any]], wanted: list[Row]) -> str:
    head = "| method | D | N | K | reading | Y Yᵀ | training | fit and predict | of reading | of Y Yᵀ | peak memory |"
    lines = [head, "| --- " * 11 + "|"]
    for row in wanted:
        result = results.get(row)
        if result is None:
            continue
        start = f"| {row.method} | {row.n_outputs:,} | {row.n_rows} | {row.n_latents} |"
        if "error" in result:
            lines.append(f"{start} {result['error'][:60]} | | | | | | |")
            continue
        ratios = ["", ""]  # of few outputs they would be noise of the training
        if row.n_outputs >= 10**6:
            ratios = [f"{beyond_training(result, what):.2f}" for what in ("read", "pass")]
        times = [f"{result[name]:.2f} s" for name in ("read", "pass", "training", "seconds")]
        lines.append(" | ".join([start.removesuffix(" |"), *times, *ratios, f"{result['memory']:,.0f} MB |"]))
    return "\n".join(lines)


def draw(results: dict[Row, dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    usual = {
        row: result
        for row, result in results.items()
        if (row.n_rows, row.n_latents) == (64, 10) and row.method != FROM_DISK and "error" not in result
    }
    labels = {"seconds": "fit and predict, s", "memory": "peak memory, MB"}
    for panel, (name, label) in zip(panels, labels.items(), strict=True):
        for method in dict.fromkeys(row.method for row in usual):
            of_method = sorted((row.n_outputs, result[name]) for row, result in usual.items() if row.method == method)
            panel.plot(*zip(*of_method, strict=True), marker=".", label=method)
        panel.set(xscale="log", yscale="log", xlabel="outputs D", ylabel=label)
    passes = sorted((row.n_outputs, result["pass"]) for row, result in usual.items() if row.method == "collapsed")
    panels[0].plot(*zip(*passes, strict=True), "k:", label="bare pass, Y Yᵀ")
    size = [D for D, _ in passes]
    panels[1].plot(size, [4 * 64 * D / 2**20 for D in size], "k:", label="Y itself")
    panels[1].set_ylim(100, None)
    for panel in panels:
        panel.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def tell(result: dict[str, Any]) -> str:
    of = f"{result['method']}, D = {result['n_outputs']:,}, N = {result['n_rows']}, K = {result['n_latents']}"
    return f"{of}: {result['error']}" if "error" in result else f"{of}: {result['seconds']:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("scale.jsonl"), help="the file of results")
    parser.add_argument("--most", type=float, default=1e8, help="the most outputs")
    parser.add_argument("--only", help="rows of this method only")
    parser.add_argument("--largest", action="store_true", help="the row with the most outputs only")
    parser.add_argument("--folder", type=Path, help="also a row whose outputs lie in a store here (4 N D bytes)")
    parser.add_argument("--picture", type=Path, help="draws a picture of the results into this file")
    options = parser.parse_args()
    wanted = rows(round(options.most), with_disk=options.folder is not None)
    wanted = [row for row in wanted if options.only in (None, row.method)]
    if options.largest:
        wanted = [max(wanted, key=lambda row: row.n_outputs)]
    run_missing(options.results, wanted, partial(measure, folder=options.folder), tell=tell, progress=False)
    results = read(options.results, Row)
    print(table(results, wanted))
    if options.picture is not None:
        draw(results, options.picture)


if __name__ == "__main__":
    main()
