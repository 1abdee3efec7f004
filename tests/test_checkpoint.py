from functools import cache

import pytest
import torch

from pyro_gprn import CollapsedGPRN, fit_collapsed
from pyro_gprn.training.checkpoint import digest

pytestmark = pytest.mark.usefixtures("quick")

X = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
Y = torch.sin(6 * X + torch.linspace(0, 3, 40)) * (1 + X)


class Killed(Exception):
    """Stands for kill -9: nothing catches it."""


def fit(checkpoint=None, stop_after=None, outputs=Y, **settings):
    calls = []

    def callback(step, bound):
        calls.append(step)
        if len(calls) == stop_after:
            raise Killed

    model = CollapsedGPRN(X, outputs.shape[1], 2, effective_outputs="auto")
    settings = {"steps": 90, "seed": 0, "restarts": 2} | settings
    result = fit_collapsed(model, outputs, checkpoint=checkpoint, progress=False, callback=callback, **settings)
    return result, model, calls


@cache
def fit_unbroken(posterior):
    return fit(posterior=posterior)[:2]


@pytest.mark.parametrize("posterior", ["variational", "laplace"])
@pytest.mark.parametrize("stop_after", [5, 47, 90, 133])
def test_a_resumed_fit_ends_where_an_unbroken_one_does(tmp_path, stop_after, posterior):
    unbroken, model = fit_unbroken(posterior)
    path = tmp_path / "fit.checkpoint"
    with pytest.raises(Killed):
        fit(path, stop_after, posterior=posterior)
    resumed, resumed_model, calls = fit(path, posterior=posterior)
    if stop_after > 20:
        assert len(calls) < 180  # it did not begin again
    assert resumed.bound == unbroken.bound
    assert [run["bound"] for run in resumed.restarts] == [run["bound"] for run in unbroken.restarts]
    assert torch.equal(resumed.losses, unbroken.losses)
    assert torch.equal(resumed.guide.v_loc, unbroken.guide.v_loc)
    assert resumed_model.effective_outputs == model.effective_outputs
    again, _, calls = fit(path, posterior=posterior)  # it is over
    assert calls == []
    assert again.bound == unbroken.bound


def test_the_checkpoint_of_another_fit_is_refused(tmp_path):
    path = tmp_path / "fit.checkpoint"
    fit(path, steps=4)
    with pytest.raises(ValueError, match="another steps"):
        fit(path, steps=5)
    with pytest.raises(ValueError, match="another data"):
        fit(path, steps=4, outputs=2 * Y)
    with pytest.raises(ValueError, match="another seed"):
        fit(path, steps=4, seed=1)


def test_training_goes_on_from_a_guide():
    first, model, _ = fit(restarts=1, steps=20)
    before = first.guide.v_loc.clone()
    more = fit_collapsed(model, Y, guide=first.guide, steps=60, seed=1, progress=False)
    assert more.guide is first.guide
    assert not torch.equal(more.guide.v_loc, before)
    assert more.bound >= more.start > -1e9
    assert more.start == pytest.approx(first.bound, abs=0.05 * abs(first.bound) + 5)
    with pytest.raises(ValueError, match="restarts must be 1"):
        fit_collapsed(model, Y, guide=first.guide, restarts=2)


def test_a_digest_sees_values_shapes_and_types():
    a = torch.arange(6.0)
    assert digest(a) == digest(a.clone())
    assert len({digest(a), digest(a.double()), digest(a.reshape(2, 3)), digest(a + 1), digest(a, a)}) == 5
