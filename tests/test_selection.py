import pytest
import torch
from helpers import random_factor
from hypothesis import given
from hypothesis import strategies as st
from torch import Size

from pyro_gprn.outputs.selection import OutputSelection


def choices(size):
    ints = st.integers(-size, size - 1)
    slices = st.slices(size).filter(lambda choice: len(range(size)[choice]) > 0)
    return ints | slices | st.lists(ints, min_size=1, max_size=4)


@given(choices(3), choices(5), st.integers(1, 7))
def test_chosen_outputs_are_those_of_indexing_mode_by_mode(first, second, block_size):
    Y = torch.arange(30.0).reshape(2, 3, 5)
    chosen = OutputSelection((first, second), Size((3, 5)))
    blocks = [Y.flatten(1)[:, chosen.positions(block)] for block in chosen.blocks(block_size)]
    rows = torch.arange(3)[_as_index(first, 3)].reshape(-1)
    columns = torch.arange(5)[_as_index(second, 5)].reshape(-1)
    expected = Y[:, rows][:, :, columns]
    if isinstance(second, int):
        expected = expected[:, :, 0]
    if isinstance(first, int):
        expected = expected[:, 0]
    assert torch.equal(chosen.reshape(torch.cat(blocks, dim=1)), expected)


def _as_index(choice, size):
    return list(range(size))[choice] if isinstance(choice, slice) else choice


def test_covariance_of_chosen_outputs():
    factors = [random_factor("full", 3), random_factor("diagonal", 4)]
    chosen = OutputSelection(([2, 0], slice(1, 3)), Size((3, 4)))
    dense = torch.kron(*(factor.covariance() for factor in factors))
    positions = chosen.positions(slice(None))
    picked = torch.kron(*(factor.covariance() for factor in chosen.factors(factors)))
    torch.testing.assert_close(picked, dense[positions][:, positions])
    torch.testing.assert_close(chosen.variances(factors), picked.diagonal())


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ((3,), "one entry for each of the 2 output modes"),
        (15, "outside a mode of size 15"),
        ((1, 2, 3), "got 3"),
        ((5, 0), "outside a mode of size 3"),
        (([0, -4], 0), "outside a mode of size 3"),
        ((slice(2, 2), 0), "chooses nothing"),
        (([], 0), "ints or slices"),
        ((0.5, 0), "ints or slices"),
    ],
)
def test_impossible_choices_are_refused(outputs, message):
    with pytest.raises(ValueError, match=message):
        OutputSelection(outputs, Size((3, 5)))
