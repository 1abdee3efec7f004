"""What a training step of each posterior of F and W costs as the number of outputs D grows.

    python benchmarks/factorised.py

N = 64, K = 10, outputs complete, so that the mean of the weights is projected. Steps at both D are timed in turn, in
one process, and their medians compared.
"""

from __future__ import annotations

import statistics
import time

import torch

from pyro_gprn import GPRN
from pyro_gprn.factorised.training import FactorisedTrainee, KroneckerTrainee, MeanFieldTrainee, MixtureTrainee
from pyro_gprn.outputs.gram import OutputStatistics

N, K, P = 64, 10, 5
FEW, MANY = 10**3, 10**6
TRAINEES = {"kronecker": KroneckerTrainee, "mean-field": MeanFieldTrainee, "mixture": MixtureTrainee}


def make(kind: type[FactorisedTrainee], n_outputs: int) -> FactorisedTrainee:
    """A posterior in training, after the steps that warm up."""
    X, Y = torch.rand(N, P), torch.randn(N, n_outputs)
    model = GPRN(X, output_shape=n_outputs, n_latents=K)
    trainee = kind(model, OutputStatistics.of(Y), 1e-3, torch.Generator().manual_seed(0))
    for _ in range(3):
        trainee.step()
    return trainee


def median_times(kind: type[FactorisedTrainee], repeats: int = 40) -> dict[int, float]:
    """The median time of a step in seconds, by the number of outputs."""
    trainees = {n_outputs: make(kind, n_outputs) for n_outputs in (FEW, MANY)}
    times: dict[int, list[float]] = {n_outputs: [] for n_outputs in trainees}
    for _ in range(repeats):
        for n_outputs, trainee in trainees.items():
            start = time.perf_counter()
            trainee.step()
            times[n_outputs].append(time.perf_counter() - start)
    return {n_outputs: statistics.median(taken) for n_outputs, taken in times.items()}


def main() -> None:
    torch.manual_seed(0)
    print(f"N = {N}, K = {K}, {torch.get_num_threads()} threads\n")
    print(f"| inference | a step at D = {FEW:,} | at D = {MANY:,} | ratio |\n| --- | --- | --- | --- |")
    for name, kind in TRAINEES.items():
        times = median_times(kind)
        few, many = times[FEW], times[MANY]
        print(f"| {name} | {1e3 * few:.1f} ms | {1e3 * many:.1f} ms | {many / few:.2f} |", flush=True)


if __name__ == "__main__":
    main()
