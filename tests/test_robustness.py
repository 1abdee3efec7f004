"""Random problems, many of them awkward: a fit never fails, never ends below its start, never says NaN."""

import math
import random

import pytest
import torch

from pyro_gprn import CollapsedGPRN, fit_collapsed, posterior_predictive

pytestmark = pytest.mark.usefixtures("quick")


def random_problem(seed):
    choose = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    N, P, D = choose.choice([1, 2, 3, 5, 9, 16]), choose.choice([1, 2, 4]), choose.choice([1, 2, 7, 60])
    X = torch.randn(N, P, generator=generator)
    if choose.random() < 0.3:  # duplicates
        X = X[torch.randint(N, (N,), generator=generator)]
    if choose.random() < 0.2:  # a constant column
        X[:, 0] = 1.0
    X = X * 10 ** choose.uniform(-4, 4) if choose.random() < 0.3 else X
    kind = choose.choice(["smooth", "noise", "constant", "zero", "front", "one-constant"])
    points = torch.linspace(-1, 1, D)
    scaled = X[:, :1] / (X[:, :1].abs().max() + 1e-12)
    Y = {
        "smooth": torch.sin(2 * scaled + points),
        "noise": torch.randn(N, D, generator=generator),
        "constant": torch.ones(N, D),
        "zero": torch.zeros(N, D),
        "front": torch.tanh(30 * (points - scaled)),
        "one-constant": torch.cat([torch.randn(N, D, generator=generator)[:, 1:], torch.ones(N, 1)], dim=1),
    }[kind]
    Y = Y * 10 ** choose.uniform(-6, 6) if choose.random() < 0.3 else Y
    if choose.random() < 0.3 and N > 2:  # holes
        Y = torch.where(torch.rand(Y.shape, generator=generator) < 0.2, torch.nan, Y)
        Y[0] = Y[0].nan_to_num()
    Y = Y.double() if choose.random() < 0.5 else Y
    effective = choose.choice([None, "auto"])
    return CollapsedGPRN(X, D, choose.choice([1, 2, 5]), effective_outputs=effective), X, Y


def check(seed):
    model, X, Y = random_problem(seed)
    fit = fit_collapsed(model, Y, steps=24, progress=False, seed=seed)
    assert math.isfinite(fit.bound)
    assert fit.bound >= fit.start
    predictive = posterior_predictive(model, fit.guide, torch.cat([X[:2], X[:2] * 1.5 + 0.1]), n_draws=8)
    assert torch.isfinite(predictive.mean()).all()
    assert (predictive.variance() > 0).all()
    assert torch.isfinite(predictive.variance()).all()
    assert torch.isfinite(predictive.sample(2)).all()


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.filterwarnings("ignore:.*jitter:RuntimeWarning")
def test_random_problems(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*jitter:RuntimeWarning")
def test_five_hundred_random_problems():
    failed = {}
    for seed in range(500):
        try:
            check(seed)
        except Exception as error:  # every kind of failure is counted
            failed[seed] = repr(error)[:200]
    assert not failed
