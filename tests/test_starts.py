"""The kernel with a constant, starts and their race, kernels by evidence."""

import math
import signal

import numpy as np
import pyro.contrib.gp.kernels as gp
import pytest
import torch

from pyro_gprn import CollapsedGPRN, GPRNRegressor, fit_collapsed
from pyro_gprn.collapsed import race, starts
from pyro_gprn.collapsed.independent import fit_independent
from pyro_gprn.collapsed.kernel_choice import CANDIDATES, choose_kernel
from pyro_gprn.collapsed.starts import STARTS, leading_functions
from pyro_gprn.collapsed.trainee import CollapsedTrainee
from pyro_gprn.network.kernels import describe_kernel, named_kernel, rebuild_kernel
from pyro_gprn.outputs.completion import complete
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import isolated
from pyro_gprn.training.interruption import Interruption, noticed_interrupts

QUICK = {"steps": 20, "seed": 0, "progress": False}


def random_numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixtures(n_rows=20, n_outputs=30, n_functions=2):
    """Outputs that are linear combinations of a few functions."""
    X = torch.linspace(-2, 2, n_rows)[:, None].double()
    F = torch.cat([torch.sin(3 * X), torch.cos(5 * X)], 1)[:, :n_functions]
    return X, F @ random_numbers(n_functions, n_outputs) + 0.05 * random_numbers(n_rows, n_outputs, seed=1)


def with_variances(model, varying, constant):
    with torch.no_grad():
        model.kernel_w.kern0.variance_unconstrained.fill_(math.log(varying))
        model.kernel_w.kern1.variance_unconstrained.fill_(math.log(constant))
    return model


@torch.no_grad()
def values(kernel, *inputs, **settings):
    """Of a kernel by itself: kernels share names in Pyro's own store."""
    with isolated():
        return kernel(*inputs, **settings)


# Two models of old are limits.


def test_independent_gps_are_the_limit_without_the_constant():
    X, _ = mixtures()
    model = with_variances(CollapsedGPRN(X, 30, 1, noise_y=0.3), 2.0, 1e-300)
    with torch.no_grad():
        C = model.output_covariance(torch.ones(20, 1).double(), *model.weights_and_noise())
    rbf = gp.RBF(1, variance=torch.tensor(2.0), lengthscale=X.std(0, correction=0)).double()
    torch.testing.assert_close(C, values(rbf, X) + 0.3**2 * torch.eye(20), rtol=0, atol=1e-8)


def test_coregionalisation_is_the_limit_without_what_varies():
    X, _ = mixtures()
    model = with_variances(CollapsedGPRN(X, 30, 2, noise_y=0.3), 1e-300, 1.5)
    F = random_numbers(20, 2)
    with torch.no_grad():
        C = model.output_covariance(F, *model.weights_and_noise())
    # y_d = F w_d + ε with w_d ~ Normal(0, 1.5 I)
    torch.testing.assert_close(C, 1.5 * F @ F.T + 0.3**2 * torch.eye(20), rtol=0, atol=1e-8)


def test_a_kernel_object_stays_as_it_was_given():
    X, _ = mixtures()
    assert isinstance(CollapsedGPRN(X, 3, 1, kernel_w=gp.Matern32(1)).kernel_w, gp.Matern32)


# Kernels.


@pytest.mark.parametrize(("name", "factor"), [("product_matern32", gp.Matern32), ("product_matern52", gp.Matern52)])
def test_a_product_is_the_product_of_its_factors(name, factor):
    X, Z = random_numbers(7, 3), random_numbers(4, 3, seed=1)
    kernel = named_kernel(f"{name}[0, 2]", X).double()
    lengths = zip((0, 2), kernel.lengthscale.detach(), strict=True)
    factors = [factor(1, lengthscale=length, active_dims=[column]).double() for column, length in lengths]
    dense = values(factors[0], X, Z) * values(factors[1], X, Z)
    torch.testing.assert_close(values(kernel, X, Z), dense, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(values(kernel, X).diagonal(), values(kernel, X, diag=True))
    again = rebuild_kernel(describe_kernel(kernel)).double()
    again.load_state_dict(kernel.state_dict())
    assert torch.equal(values(again, X, Z), values(kernel, X, Z))


@pytest.mark.parametrize("truth", CANDIDATES)
def test_the_evidence_finds_the_kernel_that_made_the_data(truth):
    X = torch.rand(50, 2, generator=torch.Generator().manual_seed(0)).double() * 4
    kernel = named_kernel(truth, X).double()
    root = torch.linalg.cholesky(values(kernel, X) + 1e-6 * torch.eye(50))
    choice = choose_kernel(X, OutputStatistics.of(root @ random_numbers(50, 300)))
    assert choice.name == next(iter(choice.evidence)) == truth
    assert list(choice.evidence.values()) == sorted(choice.evidence.values(), reverse=True)
    assert set(choice.states) == set(choice.evidence)


def test_a_fit_that_starts_at_fitted_hyperparameters_begins_with_their_evidence():
    X, Y = mixtures()
    known = OutputStatistics.of(Y)
    choice = choose_kernel(X, known, ["rbf"])
    model = CollapsedGPRN(X, Y.shape[1], 1, kernel_w="rbf")
    model.load_state_dict(choice.states["rbf"], strict=False)
    fit = fit_collapsed(model, known, starts=["independent"], from_here=True, **QUICK)
    assert fit.evidence >= choice.evidence["rbf"] - 1e-6 * abs(choice.evidence["rbf"])


def test_the_estimator_takes_the_kernel_with_the_highest_evidence():
    X, Y = mixtures()
    r = GPRNRegressor(2, selection=False, **QUICK).fit(X.numpy(), Y.numpy())
    best = choose_kernel(r.model_.X, r.fitted_.known).name
    # With one input a product is what it is made of.
    assert set(r.kernel_evidence_) == {"rbf", "matern52", "matern32", "rational_quadratic"}
    assert best in describe_kernel(r.model_.kernel_w)["sum"][0]
    given = GPRNRegressor(2, kernel_w="matern32", selection=False, **QUICK).fit(X.numpy(), Y.numpy())
    assert given.kernel_evidence_ == {}
    assert "rbf" in describe_kernel(given.model_.kernel_f)["sum"][0]


@pytest.mark.parametrize(
    ("kernel_f", "expected"), [(None, "rbf"), ("auto", "matern32"), ("matern52", "matern52")], ids=str
)
def test_rough_outputs_have_rough_weights_and_smooth_functions_unless_these_are_given(kernel_f, expected):
    X = torch.linspace(0, 10, 60).double()[:, None]
    root = torch.linalg.cholesky(values(named_kernel("matern32", X).double(), X) + 1e-6 * torch.eye(60))
    Y = root @ random_numbers(60, 40)
    r = GPRNRegressor(2, kernel_f=kernel_f, selection=False, **QUICK).fit(X.numpy(), Y.numpy())
    assert "matern32" in describe_kernel(r.model_.kernel_w)["sum"][0]
    assert expected in describe_kernel(r.model_.kernel_f)["sum"][0]


def test_inputs_that_do_not_matter_drop_out():
    X = torch.rand(80, 12, generator=torch.Generator().manual_seed(0)).double()
    Y = torch.sin(4 * X[:, :1] + torch.arange(5)) + X[:, 1:2]
    model = CollapsedGPRN(X, 5, 1)
    fit_independent(model, model.statistics(Y))
    lengths = model.at_centre(lambda: model.kernel_w.kern0.lengthscale.detach())
    assert lengths[2:].min() > 5 * lengths[0]


# Starts.


def test_leading_functions_span_what_outputs_are_made_of():
    F = random_numbers(20, 2)
    Y = F @ random_numbers(2, 30, seed=1)
    found = leading_functions(OutputStatistics.of(Y), 2)
    assert found.square().sum(1).mean() == pytest.approx(1.0)
    torch.testing.assert_close(found @ found.T, Y @ Y.T * (20 / Y.square().sum()))


def test_holes_do_not_hide_the_leading_function():
    f = random_numbers(20, 1)
    Y = f @ random_numbers(1, 200, seed=1)
    Y[3:9, ::2] = math.nan
    found = leading_functions(OutputStatistics.of(Y), 1).flatten()
    assert torch.corrcoef(torch.stack([found, f.flatten()]))[0, 1].abs() > 0.95


def test_few_outputs_are_filled_by_what_the_others_say():
    _, truth = mixtures(n_rows=60, n_outputs=6)
    seen = random_numbers(60, 6, seed=2) < 0.5
    seen[:, 0] |= ~seen.any(1)
    filled = complete(truth, seen)
    torch.testing.assert_close(filled[seen], truth[seen])
    assert (filled - truth)[~seen].square().mean() < 0.3 * truth[~seen].square().mean()
    torch.testing.assert_close(complete(torch.where(seen, truth, 1e6), seen), filled)


def test_a_row_without_any_output_is_filled_with_the_mean():
    _, truth = mixtures(n_rows=30, n_outputs=3)
    seen = torch.ones(30, 3, dtype=torch.bool)
    seen[7] = False
    assert (complete(truth, seen)[7] == 0.0).all()


@pytest.mark.parametrize("constant", [[2], [0, 1, 2, 3]], ids=["one", "all"])
def test_constant_outputs_with_holes_are_filled(constant):
    _, values = mixtures(n_rows=30, n_outputs=4)
    values[:, constant] = 0.0
    seen = torch.ones(30, 4, dtype=torch.bool)
    seen[5:10, 0] = seen[12:20, 2] = False
    filled = complete(values, seen)
    assert filled.isfinite().all()
    assert (filled[:, constant] == 0.0).all()


def test_the_leading_functions_of_few_outputs_with_holes_are_nearly_those_without():
    _, truth = mixtures(n_rows=80, n_outputs=5)
    holes = truth.clone()
    holes[10:30, 0] = holes[40:60, 3] = torch.nan
    F, G = (torch.linalg.qr(leading_functions(OutputStatistics.of(each), 2)).Q for each in (truth, holes))
    assert torch.linalg.svdvals(F.mT @ G).min() > 0.99


@pytest.mark.parametrize("name", STARTS)
def test_every_start_is_finite_with_and_without_holes(name):
    X, Y = mixtures(12)
    for outputs in (Y, torch.where(random_numbers(*Y.shape, seed=2) > 1, math.nan, Y)):
        model = CollapsedGPRN(X, 30, 15, effective_outputs=10)
        known = model.statistics(outputs)
        V = STARTS[name](model, known, torch.Generator().manual_seed(0))
        assert V.shape == (12, 15)
        assert math.isfinite(CollapsedTrainee(model, known, 0.1, torch.Generator().manual_seed(0), start=V).evaluate())


def test_the_race_never_ends_below_the_independent_start_by_the_same_draws():
    X, Y = mixtures()
    model = CollapsedGPRN(X, 30, 2, effective_outputs=10)
    known = model.statistics(Y)
    fit_independent(model, known)
    begin = {name: value.clone() for name, value in model.state_dict().items()}
    runners = []

    def make(name):
        model.load_state_dict(begin)
        generator = torch.Generator().manual_seed(0)
        V = STARTS[name](model, known, generator)
        runners.append(CollapsedTrainee(model, known, 0.1, generator, start=V, like=runners[0] if runners else None))
        return runners[-1]

    before = make("independent").evaluate()
    winner = race.race(list(STARTS), make, 400, Interruption())
    reached = {start["name"]: start["bound"] for start in winner.starts}
    assert winner.draws is runners[0].draws
    assert set(reached) == set(STARTS)
    assert reached["independent"] >= before
    assert winner.evaluate() == max(reached.values())


def test_functions_win_where_outputs_are_combinations_of_few():
    X, Y = mixtures(30, 100)
    alone = fit_collapsed(CollapsedGPRN(X, 100, 2), Y, starts=["independent"], steps=100, seed=0, progress=False)
    raced = fit_collapsed(CollapsedGPRN(X, 100, 2), Y, steps=100, seed=0, progress=False)
    assert raced.bound > alone.bound
    assert [start["name"] for start in raced.starts] == list(STARTS)
    assert [start["name"] for start in alone.starts] == ["independent"]
    assert all(start["seconds"] >= 0 for start in raced.starts)


def test_the_same_seed_gives_the_same_race(tmp_path):
    X, Y = (array.numpy() for array in mixtures())
    first, second = (GPRNRegressor(2, selection=False, **QUICK).fit(X, Y) for _ in range(2))
    assert [start["bound"] for start in first.starts_] == [start["bound"] for start in second.starts_]
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    first.save(tmp_path / "fit.gprn")
    loaded = GPRNRegressor.load(tmp_path / "fit.gprn")
    assert loaded.starts_ == first.starts_
    assert loaded.kernel_evidence_ == first.kernel_evidence_
    np.testing.assert_array_equal(loaded.predict(X), first.predict(X))


def test_a_new_start_is_one_function(monkeypatch):
    X, Y = mixtures()
    monkeypatch.setitem(starts.STARTS, "zero", lambda model, known, generator: torch.zeros(20, 2).double())
    fit = fit_collapsed(CollapsedGPRN(X, 30, 2), Y, starts=["zero"], **QUICK)
    assert [start["name"] for start in fit.starts] == ["zero"]


@pytest.mark.parametrize("wrong", ["independent", [], ["cold"]])
def test_unknown_starts_are_refused(wrong):
    X, Y = mixtures()
    with pytest.raises(ValueError, match="starts must be None or names out of 'independent', 'functions'"):
        fit_collapsed(CollapsedGPRN(X, 30, 2), Y, starts=wrong, **QUICK)


def test_an_interrupt_during_the_race_keeps_what_was_reached(monkeypatch):
    X, Y = mixtures()
    step, steps = CollapsedTrainee.step, []

    def interrupt(self):
        steps.append(1)
        if len(steps) == 5:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    monkeypatch.setattr(CollapsedTrainee, "step", interrupt)
    with pytest.warns(UserWarning, match="interrupted"), noticed_interrupts():
        fit = fit_collapsed(CollapsedGPRN(X, 30, 2), Y, **QUICK)
    assert len(steps) == 5
    assert math.isfinite(fit.bound)


def test_a_race_is_resumed_to_the_bit(tmp_path):
    X, Y = (array.numpy() for array in mixtures())
    settings = {"steps": 60, "seed": 0, "progress": False, "selection": False}
    whole = GPRNRegressor(2, **settings).fit(X, Y)
    settings["checkpoint"] = tmp_path / "fit.checkpoint"

    def stop(step, bound):
        if step == 45:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        GPRNRegressor(2, **settings).fit(X, Y, callback=stop)
    resumed = GPRNRegressor(2, **settings).fit(X, Y)
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))
