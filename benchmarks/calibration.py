"""What ``diagnose`` says of coverage, beside the coverage of rows that the fit has never seen.

    python benchmarks/calibration.py [--draws-alone | --fields-alone] [--seed 0]

Fields of benchmarks/fields.py, of which the network is not the model, and draws from the network itself, with outputs
of one size and of different sizes. Shares in central 95 % intervals (50 %): of all numbers, in the tenth of outputs
that vary most, and among the numbers that are predicted farthest from their outputs' means.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from fields import FIELDS
from torch import Tensor

from pyro_gprn import GPRNRegressor, diagnose
from pyro_gprn.collapsed.draws import PosteriorDraws
from pyro_gprn.datasets import sample_gprn
from pyro_gprn.diagnostics.coverage import Coverage, find_coverages
from pyro_gprn.diagnostics.held_out import N_DRAWS, predict_without_refit
from pyro_gprn.pyro_state import new_generator

N_TRAIN, N_NEW, N_OUTPUTS = 80, 60, 1024
N_NEW_DRAWS = 150


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws-alone", action="store_true", help="leave out the fields")
    parser.add_argument("--fields-alone", action="store_true", help="leave out the draws from the network")
    parser.add_argument("--seed", type=int, default=0, help="of the first draw from the network")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| problem | new rows: the truth | refitted folds | left out of the fit as it is | k-hat | warnings |")
    print("| --- " * 6 + "|")
    if not asked.draws_alone:
        compare_fields()
    if not asked.fields_alone:
        compare_draws(asked.seed)


def compare_fields() -> None:
    for name, problem in FIELDS.items():
        for split in (0, 1):
            X, Y = (array.flatten(1).double() for array in problem(N_TRAIN + N_NEW, split))
            Y = Y[:, :: max(1, Y.shape[1] // N_OUTPUTS)]
            compare(f"{name} {split}", X, Y, N_TRAIN, GPRNRegressor(5, standardize="field", seed=0, progress=False))


def compare_draws(seed: int) -> None:
    for number in range(40):
        is_sized = number >= 24  # then outputs have sizes of their own
        n_latents, n_rows = 1 + number % 3, (15, 25, 40, 80)[number % 4]
        n_outputs = 200 if is_sized else (4, 12, 60)[(number // 4) % 3]
        drawn = sample_gprn(
            n_rows + N_NEW_DRAWS, seed + number, output_shape=n_outputs, n_latents=n_latents, n_inputs=1 + number % 2
        )
        sizes = torch.ones(n_outputs, dtype=torch.float64)
        if is_sized:
            generator = torch.Generator().manual_seed(seed + number)
            sizes = torch.randn(n_outputs, generator=generator, dtype=torch.float64).exp().sort().values
        name = f"draw {number}, N = {n_rows}, D = {n_outputs}, K = {n_latents}" + (", sizes" if is_sized else "")
        regressor = GPRNRegressor(n_latents, effective_outputs=None, seed=0, progress=False)
        compare(name, drawn.X, drawn.Y * sizes, n_rows, regressor)


def compare(name: str, X: Tensor, Y: Tensor, n_rows: int, regressor: GPRNRegressor) -> None:
    """Fits the first rows and prints what the report says, and what the others say."""
    fitted = regressor.fit(X[:n_rows], Y[:n_rows]).fitted_
    report = diagnose(regressor)
    known, values = fitted.known, fitted.scaling.outputs(Y[n_rows:])
    new = fitted.predictive(fitted.scaling.inputs(X[n_rows:]), new_generator(0))
    # The training rows say which outputs vary most, for new rows too.
    spread = known.source.read(slice(None)).double().std(0)
    truth = find_coverages(new.cdf(values), values, new.mean(), spread)  # type: ignore[attr-defined]
    draws = PosteriorDraws.of(fitted.model, fitted.guide, N_DRAWS, generator=new_generator(0))  # type: ignore[arg-type]
    everything = torch.arange(known.source.n_outputs)
    cheap = predict_without_refit(draws, known, everything, fitted.output_scales, generator=new_generator(1))
    as_it_is = find_coverages(cheap.pit, cheap.values, cheap.mean)
    told = "; ".join(warning.split(":")[0] for warning in report.warnings)
    shown = " | ".join(_shares(each) for each in (truth, report.coverages, as_it_is))
    print(f"| {name} | {shown} | {report.pareto_k:.2f} | {told} |", flush=True)


def _shares(coverages: list[Coverage]) -> str:
    shares = [f"{each.outer:.3f} ({each.inner:.3f})" for each in coverages]
    return ", ".join(shares if len(shares) == 3 else [shares[0], "–", shares[1]])


if __name__ == "__main__":
    main()
