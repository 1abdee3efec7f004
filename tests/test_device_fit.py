"""A whole fit and its predictions make nothing on another device than the data's.

There is no GPU here. Inside ``torch.device("meta")`` whatever is made without naming a device holds no numbers, and
fails as soon as it meets the data, which are on the CPU: as it would beside data on a GPU.
"""

import pytest
import torch

from pyro_gprn import (
    GPRN,
    CollapsedGPRN,
    fit_collapsed,
    output_correlation,
    posterior_predictive,
    sample_weights,
)
from pyro_gprn.diagnostics.leave_one_out import describe_draws, predict_left_out
from pyro_gprn.factorised import fit_kronecker, fit_mean_field, fit_mixture
from pyro_gprn.outputs.source import ArrayOutputs
from pyro_gprn.outputs.standardize import standardize

X = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
X_NEW = X[:3] + 0.05
Y = torch.sin(3 * X + torch.linspace(0, 3, 12)).reshape(8, 3, 4)
HOLES = Y.clone()
HOLES[2:4, 1, :2] = torch.nan
SELECTIONS = [None, (1, slice(0, 3)), [7, 0]]


pytestmark = pytest.mark.usefixtures("quick")


def generator():
    return torch.Generator().manual_seed(0)


def predict(model, guide):
    """Everything that predictions can say."""
    for outputs in SELECTIONS:
        predictive = posterior_predictive(model, guide, X_NEW, generator=generator())
        mean = predictive.mean(outputs)
        found = [
            mean,
            predictive.variance(outputs),
            predictive.sample(3, outputs),
            predictive.log_density(mean, outputs),
        ]
        assert all(each.device.type == "cpu" and each.isfinite().all() for each in found)


def test_what_this_test_looks_for_fails():
    with torch.device("meta"), pytest.raises((RuntimeError, NotImplementedError)):
        (X + torch.ones(8, 1)).tolist()


@pytest.mark.parametrize("outputs", [Y, HOLES], ids=["complete", "holes"])
@pytest.mark.parametrize("posterior", ["variational", "laplace", "point"])
def test_a_collapsed_fit_and_its_predictions(outputs, posterior):
    model = CollapsedGPRN(X, (3, 4), 2, effective_outputs="auto")
    with torch.device("meta"):
        fit = fit_collapsed(model, outputs, posterior=posterior, steps=22, restarts=2, seed=0, progress=False)
        predict(model, fit.guide)


def test_a_collapsed_fit_is_resumed(tmp_path):
    settings = {"steps": 2, "seed": 0, "progress": False, "checkpoint": tmp_path / "fit"}
    models = [CollapsedGPRN(X, (3, 4), 2, effective_outputs="auto") for _ in range(2)]
    with torch.device("meta"):
        first, second = (fit_collapsed(model, Y, **settings) for model in models)
    assert first.bound == second.bound


@pytest.mark.parametrize("outputs", [Y, HOLES], ids=["complete", "holes"])
@pytest.mark.parametrize("fit_factorised", [fit_kronecker, fit_mean_field, fit_mixture])
def test_a_factorised_fit_and_its_predictions(fit_factorised, outputs):
    model = GPRN(X, (3, 4), 2)
    with torch.device("meta"):
        fit = fit_factorised(model, outputs, steps=3, seed=0, progress=False)
        predict(model, fit.guide)


@pytest.mark.parametrize("scale", ["field", "outputs"])
def test_outputs_are_standardised(scale):
    land = HOLES.clone()
    land[:, 2] = torch.nan
    with torch.device("meta"):
        found = standardize(ArrayOutputs(land), scale)
    assert found.present.tolist() == list(range(8))
    assert found.statistics.source.read(slice(0, 8)).nanmean().abs() < 1e-12


def test_weights_correlations_and_rows_left_out():
    model = CollapsedGPRN(X, (3, 4), 2)
    fit = fit_collapsed(model, HOLES, steps=2, seed=0, progress=False)
    with torch.device("meta"):
        for outputs in SELECTIONS:
            weights = sample_weights(model, fit.guide, X_NEW, 3, outputs, generator=generator())
            assert weights.device.type == "cpu"
        correlation = output_correlation(model, fit.guide, X_NEW, [0, 7], n_draws=4, generator=generator())
        assert correlation.isfinite().all()
        described = describe_draws(model, fit.guide, 4, generator=generator())
        positions = torch.tensor([0, 7], device="cpu")
        assert predict_left_out(described.draws, positions, generator=generator()).mean.isfinite().all()
