"""How many latent functions: what n_latents="auto" chooses beside what every choice would have given.

    python benchmarks/latents.py

Held-out NRMSE and mean log density (standardised outputs) of each number of latent functions; its score by refitted
folds (CRPS, lower is better; nan if it was not tried on them); and the choice. The fields are those of fields.py.
"""

from __future__ import annotations

import numpy as np
from fields import FIELDS, N_TEST, N_TRAIN

from pyro_gprn import GPRNRegressor
from pyro_gprn.training.selection import LATENTS


def main() -> None:
    print("| problem | chosen | " + " | ".join(f"K = {K}" for K in LATENTS) + " |\n" + "| --- " * 7 + "|")
    for name, problem in FIELDS.items():
        for seed in (0, 1):
            X, Y = (array.flatten(1).double().numpy() for array in problem(N_TRAIN + N_TEST, seed))
            (X, X_new), (Y, truth) = np.split(X, [N_TRAIN]), np.split(Y, [N_TRAIN])
            auto = GPRNRegressor("auto", seed=0, progress=False).fit(X, Y)
            shown = []
            for K in LATENTS:
                r = GPRNRegressor(K, seed=0, progress=False).fit(X, Y)
                error = np.sqrt(1 - r.score(X_new, truth))
                density = r.log_predictive_density(X_new, truth).mean() + np.log((Y - Y.mean(0)).std())
                shown.append(f"{error:.3g} / {density:.2f} ({auto.latent_scores_.get(K, np.nan):.3g})")
            print(f"| {name} {seed} | {auto.n_latents_} | " + " | ".join(shown) + " |", flush=True)


if __name__ == "__main__":
    main()
