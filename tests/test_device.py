"""Nothing is made on another device than its inputs: shown on "meta", which holds no numbers, for want of a GPU."""

import pytest
import torch

from pyro_gprn import MatrixNormal, TensorNormal
from pyro_gprn.algebra.linalg import along_mode
from pyro_gprn.collapsed.likelihood import CollapsedNormal, output_covariance, pull_back
from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.network.kernels import KERNELS, named_kernel

META = torch.device("meta")


def on_meta(*shape):
    return torch.empty(shape, dtype=torch.float64, device=META)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name):
    kernel = named_kernel(name, torch.rand(5, 2)).to(META)
    assert kernel(on_meta(5, 2)).device == META


def test_covariances_and_their_gradients():
    F, Kw, noise = on_meta(3, 5, 2), on_meta(5, 5), on_meta()
    C = output_covariance(F, Kw, noise, 1e-10)
    assert [each.device for each in (C, *pull_back(C, 1e-10))] == [META] * 3
    assert CollapsedNormal(C, torch.Size((7,)), validate_args=False).variance.device == META


def test_distributions():
    loc = on_meta(4, 3)
    for q in (
        MatrixNormal(loc, on_meta(4, 4), on_meta(3, 3), validate_args=False),
        TensorNormal(loc, [on_meta(4), None], validate_args=False),
    ):
        assert q.rsample((2,)).device == META
        assert q.log_prob(on_meta(4, 3)).device == META
        assert q.variance.device == META
    assert along_mode(lambda columns: columns, loc, 0, 2).device == META


def test_scaling():
    scaling = Scaling(on_meta(2), on_meta(2), on_meta(9), on_meta())
    assert scaling.inputs(on_meta(4, 2)).device == META
    assert scaling.undo(scaling.outputs(on_meta(4, 9))).device == META
