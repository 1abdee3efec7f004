"""Makes the reference that test_golden.py compares with: ``python tests/golden/make.py FOLDER``.

Only public names are used, so that the same program runs before and after a change of the code.
"""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.contrib.gp.kernels as kernels
import torch
from pyro.contrib.gp.kernels import Kernel
from pyro.infer import SVI
from pyro.optim import Adam

from pyro_gprn import (
    GPRN,
    ClosedFormELBO,
    CollapsedGPRN,
    CollapsedGuide,
    GPRNRegressor,
    KroneckerGuide,
    fit_collapsed,
    output_correlation,
    posterior_predictive,
    sample_weights,
)

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(15, 2))
X_NEW = X[:4] + 0.05
# Noise keeps every matrix well conditioned, so that rounding stays rounding over the steps of a fit: without it, a
# change of Y by 1e-15 changed predictions by 1e-5.
FIELD = np.sin(3 * X[:, :1] + np.arange(12)) + X[:, 1:] * np.cos(np.arange(12)) + 0.3 * RNG.normal(size=(15, 12))
FIELD = FIELD.reshape(15, 4, 3)
TABLE = FIELD.reshape(15, 12)[:, :6]
# The reference was made when all outputs had one scale, training started at independent GPs alone, and a kernel given
# by name had no constant added. Pyro kernels are taken as they are, so they give the model of then.
AS_THEN = {"output_scales": False, "starts": ["independent"]}
AS_THEN = {name: value for name, value in AS_THEN.items() if name in GPRNRegressor().get_params()}
START = {"starts": ["independent"]} if "starts" in inspect.signature(fit_collapsed).parameters else {}


def of_functions(kernel: Kernel) -> Kernel:
    """A kernel of the latent functions: its scale held at 1, and the constant 1 added."""
    del kernel.variance
    kernel.register_buffer("variance", torch.ones(()))
    return kernels.Sum(kernel, 1.0)


def rbfs(spread: np.ndarray) -> dict[str, Kernel]:
    """The kernels that were the default, for inputs of some standard deviation in each column."""
    lengths = torch.from_numpy(spread)
    return {
        "kernel_f": of_functions(kernels.RBF(2, lengthscale=lengths * 2**0.5)),
        "kernel_w": kernels.RBF(2, lengthscale=lengths.clone()),
    }


def mixed() -> dict[str, Kernel]:
    """Sums and products of other kernels."""
    one, both = torch.ones(1, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    product = kernels.Product(
        kernels.Matern52(1, lengthscale=one.clone(), active_dims=[0]), kernels.RBF(1, lengthscale=one, active_dims=[1])
    )
    return {
        "kernel_f": of_functions(kernels.Matern52(2, lengthscale=both * 2**0.5)),
        "kernel_w": kernels.Sum(product, kernels.Linear(2)),
    }


def with_holes() -> np.ndarray:
    outputs = TABLE.copy()
    outputs[2:5, 3] = np.nan
    outputs[9, 4:] = np.nan
    return outputs


def regressor(outputs: np.ndarray, **settings: Any) -> GPRNRegressor:
    settings = {"n_latents": 2, "steps": 40, "seed": 0, "progress": False} | AS_THEN | rbfs(np.ones(2)) | settings
    return GPRNRegressor(**settings).fit(X, outputs)


def predictions(r: GPRNRegressor) -> dict[str, np.ndarray]:
    mean, std = r.predict(X_NEW, return_std=True)
    truth = np.nan_to_num(np.asarray(mean)) + 0.1
    found = {"mean": mean, "std": std, "draws": r.sample(X_NEW, 5, seed=1)}
    found |= {"bound": r.elbo_, "losses": r.losses_, "density": r.log_predictive_density(X_NEW, truth)}
    return {name: np.asarray(values) for name, values in found.items()}


def of_parts() -> dict[str, np.ndarray]:
    """The collapsed network by hand: each posterior, weights, correlations."""
    inputs, outputs = torch.from_numpy(X), torch.from_numpy(TABLE)
    found = {}
    for posterior in ("laplace", "point"):
        model = CollapsedGPRN(inputs, 6, 2, effective_outputs="auto", **rbfs(X.std(0)))
        fit = fit_collapsed(model, outputs, posterior=posterior, steps=30, seed=0, progress=False, **START)
        found[f"{posterior}_bound"] = fit.bound
        found[f"{posterior}_loc"] = fit.guide.v_loc.detach().numpy()
    new = torch.from_numpy(X_NEW)
    torch.manual_seed(0)
    model = CollapsedGPRN(inputs, 6, 2, **rbfs(X.std(0)))
    guide = CollapsedGuide(model)
    predictive = posterior_predictive(model, guide, new, outputs)
    found["guide_mean"] = predictive.mean().numpy()
    found["guide_variance"] = predictive.variance().numpy()
    found["guide_draws"] = predictive.sample(3).numpy()
    found["weights"] = sample_weights(model, guide, new, 2, Y=outputs).numpy()
    found["correlation"] = output_correlation(model, guide, new, Y=outputs, n_draws=3).numpy()
    paper = GPRN(inputs, 6, 2)
    kronecker = KroneckerGuide(paper)
    svi = SVI(paper, kronecker, Adam({"lr": 0.01}), ClosedFormELBO())
    found["svi_losses"] = [svi.step(outputs) for _ in range(5)]
    pyro.clear_param_store()
    predictive = posterior_predictive(paper, kronecker, new, outputs)
    found["kronecker_mean"] = predictive.mean().detach().numpy()
    found["kronecker_variance"] = predictive.variance().detach().numpy()
    return {name: np.asarray(values) for name, values in found.items()}


CASES: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "field": lambda: predictions(regressor(FIELD)),
    "table": lambda: predictions(regressor(TABLE)),
    "holes": lambda: predictions(regressor(with_holes())),
    "kernels": lambda: predictions(regressor(TABLE, steps=20, **mixed())),
    "restarts": lambda: predictions(regressor(TABLE, restarts=2, effective_outputs=3)),
    "as_they_are": lambda: predictions(regressor(TABLE, standardize=False, **rbfs(X.std(0)))),
    "parts": of_parts,
}


#: Files of the first version of the format, and what they were fitted to.
FILES: dict[str, Callable[[], GPRNRegressor]] = {
    "version_1": lambda: regressor(with_holes()),
    "version_1_kronecker": lambda: regressor(TABLE, inference="kronecker", kernel_f=None, kernel_w=None),
}


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    reference = {f"{case}.{name}": values for case, make in CASES.items() for name, values in make().items()}
    for file, make_regressor in FILES.items():
        r = make_regressor()
        r.save(folder / f"{file}.gprn")
        reference |= {f"{file}.{name}": values for name, values in predictions(r).items()}
    np.savez_compressed(folder / "reference.npz", **reference)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
