"""Networks with inducing inputs: how their cost grows, and how good they are beside what one would take instead.

    python benchmarks/many_rows.py                     run all cells that are missing, then print all results
    python benchmarks/many_rows.py --only cost near    run the cells whose names begin so
    python benchmarks/many_rows.py --list              print the names of the cells
    python benchmarks/many_rows.py --summary           print the results so far

Each cell runs in a process of its own, whose peak memory it reports; its result is added to the results file as soon as
it is there, and what is in the file is not computed again. Times are those of this machine: compare them in one run.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comparison.simulators import development

from pyro_gprn import CollapsedGPRN, GPRNRegressor
from pyro_gprn.collapsed.inducing import spread_rows
from pyro_gprn.collapsed.trainee import CollapsedTrainee
from pyro_gprn.pyro_state import new_generator

Cell = Callable[[], dict[str, Any]]
#: The most steps of the fits that are compared. Those with inducing inputs take no more; an exact one of 1,000 rows had
#: not ended after 25 minutes with the 800 that it may take.
STEPS = 300


def waves(n_rows: int, n_outputs: int, noise: float = 0.2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Outputs over two inputs, whose mixing of three waves changes with the inputs."""
    random = np.random.default_rng(seed)
    X = random.random((n_rows, 2))
    settings = np.random.default_rng(1)  # the same waves for every seed
    waves = np.sin(2 * np.pi * X @ settings.normal(size=(2, 3)) * 1.2 + settings.normal(size=3))
    slopes, phases = settings.normal(size=(2, 3 * n_outputs)), settings.normal(size=3 * n_outputs) * 3
    Y = np.zeros((n_rows, n_outputs))
    for k in range(3):
        part = slice(k * n_outputs, (k + 1) * n_outputs)
        Y += waves[:, k : k + 1] * np.cos(2 * X @ slopes[:, part] + phases[part])
    return X, Y + noise * random.normal(size=Y.shape)


def cost_of_a_step(n_rows: int, n_outputs: int, m: int = 64) -> dict[str, Any]:
    """Seconds of a training step, the median of some, after the pass over Y."""
    X, Y = (torch.from_numpy(each) for each in waves(n_rows, n_outputs))
    model = CollapsedGPRN(X, n_outputs, 3, inducing=m)
    begin = time.perf_counter()
    known = model.statistics(Y)
    of_pass = time.perf_counter() - begin
    trainee = CollapsedTrainee(model, known, 0.05, new_generator(0), is_hurried=True)
    trainee.step()
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        trainee.step()
        trainee.step()  # every other step holds the covariances
        seconds.append((time.perf_counter() - begin) / 2)
    return {"seconds": float(np.median(seconds)), "pass": of_pass, "columns": known.columns.shape[1]}


def settled(n_rows: int, n_outputs: int, m: int, *, streamed: bool = False) -> dict[str, Any]:
    """A fit to the settled bound; streamed, from a file of float32."""
    X, Y = waves(n_rows, n_outputs if not streamed else 1)
    with tempfile.TemporaryDirectory() as folder:
        if streamed:
            Y = np.memmap(Path(folder) / "Y", dtype=np.float32, shape=(n_rows, n_outputs), mode="w+")
            for start in range(0, n_rows, 10_000):
                Y[start : start + 10_000] = _rows_of_waves(X[start : start + 10_000], n_outputs, start)
        held = len(X) // 50
        r = GPRNRegressor(3, inducing=m, selection=False, seed=0, progress=False)
        begin = time.perf_counter()
        r.fit(X[held:], Y[held:])
        seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        mean = r.predict(X[:held])
        of_prediction = time.perf_counter() - begin
        error = np.sqrt(np.mean((mean - np.asarray(Y[:held])) ** 2) / np.var(np.asarray(Y[:held])))
    return {"seconds": seconds, "steps": len(r.losses_), "nrmse": float(error), "predict": of_prediction}


def _rows_of_waves(X: np.ndarray, n_outputs: int, seed: int) -> np.ndarray:
    """As :func:`waves`, for given inputs."""
    settings = np.random.default_rng(1)
    waves = np.sin(2 * np.pi * X @ settings.normal(size=(2, 3)) * 1.2 + settings.normal(size=3))
    slopes, phases = settings.normal(size=(2, 3 * n_outputs)), settings.normal(size=3 * n_outputs) * 3
    mixing = np.cos(2 * X @ slopes + phases).reshape(len(X), 3, n_outputs)
    return (waves[:, :, None] * mixing).sum(1) + 0.2 * np.random.default_rng(seed + 7).normal(size=(len(X), n_outputs))


def new_rows(problem: str, n_rows: int, n_test: int, seed: int) -> tuple[np.ndarray, ...]:
    """Training and test rows of a problem of the accuracy benchmark, enlarged; at most 60 outputs."""
    if problem == "waves":
        X, Y = waves(n_rows + n_test, 6, 0.5, seed)
    else:
        X, Y = (each.double().numpy() for each in getattr(development, problem)(n_rows + n_test, seed))
    Y = Y.reshape(len(Y), -1)
    Y = Y[:, :: max(1, Y.shape[1] // 60)]
    order = np.random.default_rng(seed).permutation(len(X))
    kept, asked = order[:n_rows], order[n_rows:]
    return X[kept], Y[kept], X[asked], Y[asked]


def scores(regressor: Any, X: np.ndarray, Y: np.ndarray, spread: np.ndarray) -> dict[str, float]:
    """Error and density of predictions, on the scale of the training outputs."""
    mean = regressor.predict(X)
    density = regressor.log_predictive_density(X, Y) + np.log(spread)
    error = np.sqrt(np.mean(((mean - Y) / spread) ** 2))
    return {"nrmse": float(error), "nlpd": float(-np.mean(density))}


def fit_network(
    problem: str, n_rows: int, inducing: int | None, n_latents: int = 3, subset: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """A network, exact or with inducing inputs, judged on new rows; of a subset of the rows if that is given."""
    X, Y, X_test, Y_test = new_rows(problem, n_rows, 500, seed)
    spread = Y.std(0)
    X, Y = X[:subset], Y[:subset]
    settings = {"starts": ["independent", "functions"], "own_kernels": False, "kernel_w": "rbf", "steps": STEPS}
    r = GPRNRegressor(n_latents, inducing=inducing, selection=False, seed=0, progress=False, **settings)
    begin = time.perf_counter()
    r.fit(X, Y)
    return {"seconds": time.perf_counter() - begin, "elbo": r.elbo_, **scores(r, X_test, Y_test, spread)}


def fit_svgp(problem: str, n_rows: int, m: int, seed: int = 0, steps: int = 1500, batch: int = 1000) -> dict[str, Any]:
    """GPyTorch's stochastic variational GP for each output, with m inducing inputs that are trained."""
    import gpytorch

    X, Y, X_test, Y_test = new_rows(problem, n_rows, 500, seed)
    spread, centre, middle, width = Y.std(0), Y.mean(0), X.mean(0), X.std(0)
    inputs, asked = (torch.from_numpy((each - middle) / width) for each in (X, X_test))
    outputs = torch.from_numpy((Y - centre) / spread)

    class OneOutput(gpytorch.models.ApproximateGP):
        def __init__(self, Z: torch.Tensor) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            super().__init__(gpytorch.variational.VariationalStrategy(self, Z, q, learn_inducing_locations=True))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=Z.shape[1]))

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    generator, begin, means, deviations = torch.Generator().manual_seed(seed), time.perf_counter(), [], []
    for y in outputs.T:
        model = OneOutput(inputs[spread_rows(inputs, m)].clone()).double()
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
        optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.02)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(steps):
            some = torch.randint(len(y), (batch,), generator=generator)
            optimiser.zero_grad()
            (-bound(model(inputs[some]), y[some])).backward()
            optimiser.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            predicted = likelihood(model(asked))
            means.append(predicted.mean.numpy())
            deviations.append(predicted.variance.sqrt().numpy())
    seconds = time.perf_counter() - begin
    mean, deviation, truth = np.stack(means, 1), np.stack(deviations, 1), (Y_test - centre) / spread
    nlpd = 0.5 * ((truth - mean) / deviation) ** 2 + np.log(deviation) + 0.5 * math.log(2 * math.pi)
    return {"seconds": seconds, "nrmse": float(np.sqrt(np.mean((mean - truth) ** 2))), "nlpd": float(nlpd.mean())}


def chosen_inputs(problem: str, n_rows: int, m: int, how: str, seed: int = 0) -> dict[str, Any]:
    """The bound and the error of a network whose inducing inputs are chosen by k-means++ or by pivoted Cholesky."""
    from pyro_gprn import fit_collapsed, posterior_predictive

    X, Y, X_test, Y_test = (torch.from_numpy(each) for each in new_rows(problem, n_rows, 500, seed))
    centre, spread, middle, width = Y.mean(0), Y.std(0), X.mean(0), X.std(0)
    X, X_test = (X - middle) / width, (X_test - middle) / width
    Y, Y_test = (Y - centre) / spread, (Y_test - centre) / spread
    few = CollapsedGPRN(X[:300], Y.shape[1], 3, effective_outputs="auto")
    fit_collapsed(few, Y[:300], starts=["independent"], steps=100, seed=0, progress=False)
    rows = spread_rows(X, m) if how == "k-means++" else pivots(few.kernel_w, X, m)
    model = CollapsedGPRN(X, Y.shape[1], 3, inducing=X[rows], effective_outputs="auto", train_inducing=how == "trained")
    fit = fit_collapsed(model, Y, starts=["independent"], seed=0, progress=False)
    error = (posterior_predictive(model, fit.guide, X_test).mean() - Y_test).square().mean().sqrt()
    return {"bound": fit.bound, "nrmse": error.item()}


@torch.no_grad()
def pivots(kernel: Any, X: torch.Tensor, m: int) -> torch.Tensor:
    """Rows one by one, each that of which the kernel leaves most: the pivots of a Cholesky factorisation."""
    left, columns, rows = kernel(X, diag=True).clone(), torch.zeros(len(X), m, dtype=X.dtype), []
    for place in range(m):
        row = int(left.argmax())
        rows.append(row)
        column = kernel(X, X[row : row + 1])[:, 0] - columns[:, :place] @ columns[row, :place]
        columns[:, place] = column / left[row].clamp(min=1e-12).sqrt()
        left = (left - columns[:, place].square()).clamp(min=0.0)
    return torch.tensor(rows).unique()


CELLS: dict[str, Cell] = {
    **{f"cost N={n} D=50": partial(cost_of_a_step, n, 50) for n in (1_000, 3_000, 10_000, 30_000, 100_000)},
    **{f"cost N=10000 D={d}": partial(cost_of_a_step, 10_000, d) for d in (500, 2_000, 8_000)},
    **{
        f"pays waves N={n} {'exact' if m is None else f'm={m}'}": partial(fit_network, "waves", n, m)
        for n in (500, 1_000, 2_000)
        for m in (None, 100)
    },
    "settled N=10000 D=100 m=100": partial(settled, 10_000, 100, 100),
    "streamed N=100000 D=1000 m=64": partial(settled, 100_000, 1_000, 64, streamed=True),
    **{
        f"near {problem} N=1000 {'exact' if m is None else f'm={m}'}": partial(fit_network, problem, 1_000, m)
        for problem in ("noisy_blob", "pendulum")
        for m in (None, 150)
    },
    "beside waves N=10000 m=100": partial(fit_network, "waves", 10_000, 100),
    "beside waves N=10000 exact of 1000": partial(fit_network, "waves", 10_000, None, subset=1_000),
    "beside waves N=10000 SVGP m=100": partial(fit_svgp, "waves", 10_000, 100),
    **{
        f"inputs {problem} {how}": partial(chosen_inputs, problem, 3_000, 60, how)
        for problem in ("waves", "noisy_blob")
        for how in ("k-means++", "pivoted Cholesky", "trained")
    },
}


def _run(name: str) -> dict[str, Any]:
    begin = time.perf_counter()
    result = CELLS[name]()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"cell": name, **result, "peak_gigabytes": peak, "seconds_in_all": time.perf_counter() - begin}


def _read(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {result["cell"]: result for result in map(json.loads, lines)}


def _summary(results: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, result in results.items():
        lines.append(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in result.items() if key != "cell"))
    steps = {name: r["seconds"] for name, r in results.items() if name.startswith("cost")}
    if (first := steps.get("cost N=10000 D=50")) is not None:
        lines.append("seconds of a step over those at N = 10,000, D = 50:")
        lines += [f"    {name.removeprefix('cost ')}: {seconds / first:.2f}" for name, seconds in steps.items()]
    for problem in ("noisy_blob", "pendulum"):
        exact, low = (results.get(f"near {problem} N=1000 {which}") for which in ("exact", "m=150"))
        if exact and low:
            ratio, density = low["nrmse"] / exact["nrmse"], low["nlpd"] - exact["nlpd"]
            lines.append(f"{problem}, m = 150 beside exact: error {ratio:.4f} times, NLPD {density:+.4f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run the cells whose names begin so")
    parser.add_argument("--results", type=Path, default=Path("many_rows.jsonl"), help="the file of results")
    parser.add_argument("--summary", action="store_true", help="run nothing, print the results")
    parser.add_argument("--list", action="store_true", help="print the names of the cells")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the process of a cell ends with this one
    names = [name for name in CELLS if options.only is None or name.startswith(tuple(options.only))]
    if options.list:
        return print("\n".join(names))
    known = _read(options.results)
    for name in [] if options.summary else [name for name in names if name not in known]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            known[name] = pool.apply(_run, (name,))
        with options.results.open("a") as file:
            file.write(json.dumps(known[name]) + "\n")
        print(_summary({name: known[name]}), flush=True)
    return print("\n" + _summary(known))


if __name__ == "__main__":
    main()
