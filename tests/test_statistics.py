import numpy as np
import pytest
import torch

from pyro_gprn.statistics import OutputStatistics, gram_matrix


@pytest.mark.parametrize("chunk_bytes", [1, 1000, 2**26])
@pytest.mark.parametrize("output_shape", [(7,), (3, 5), (2, 3, 4)], ids=str)
def test_gram_matrix_equals_the_product_whatever_the_chunks(chunk_bytes, output_shape):
    Y = torch.randn(4, *output_shape, dtype=torch.float64)
    expected = Y.flatten(1) @ Y.flatten(1).mT
    torch.testing.assert_close(gram_matrix(Y, chunk_bytes=chunk_bytes), expected)


def test_float32_outputs_are_summed_in_float64():
    Y = 1 + 1e-3 * torch.randn(3, 100_000)
    expected = Y.double() @ Y.double().mT
    torch.testing.assert_close(gram_matrix(Y), expected, rtol=1e-13, atol=0)


def test_numpy_and_memory_maps_work(tmp_path):
    Y = np.random.default_rng(0).normal(size=(3, 10, 4)).astype(np.float32)
    stored = np.memmap(tmp_path / "Y", dtype=np.float32, mode="w+", shape=Y.shape)
    stored[:] = Y
    torch.testing.assert_close(gram_matrix(stored, chunk_bytes=100), gram_matrix(Y))
    torch.testing.assert_close(gram_matrix(Y), gram_matrix(torch.from_numpy(Y)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_missing_outputs_are_refused_with_their_row(value):
    Y = torch.zeros(4, 5)
    Y[2, 3] = value
    with pytest.raises(ValueError, match=r"in 1 of 4 rows \(the first: row 2\).*mask"):
        gram_matrix(Y)


def test_statistics_know_their_outputs():
    Y = torch.randn(4, 6)
    known = OutputStatistics.of(Y)
    assert known.outputs is Y
    assert known.describe(Y)
    assert known.describe(Y.view(4, 6))
    assert not known.describe(Y.clone())
    Y += 1
    assert not known.describe(Y)
