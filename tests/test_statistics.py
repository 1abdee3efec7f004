import numpy as np
import pytest
import torch

from pyro_gprn.outputs.gram import OutputStatistics, gram_matrix


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


def test_missing_outputs_have_no_single_gram_matrix():
    Y = torch.zeros(4, 5)
    Y[2, 3] = torch.nan
    with pytest.raises(ValueError, match=r"in 1 of 4 rows \(the first: row 2\).*mask"):
        print(OutputStatistics.of(Y).gram)


@pytest.mark.parametrize("other", [0.0, torch.nan])
def test_inf_is_refused(other):
    Y = torch.zeros(4, 5)
    Y[2, 3], Y[1, 1] = torch.inf, other
    with pytest.raises(ValueError, match="Y holds inf"):
        OutputStatistics.of(Y)


def test_an_output_without_observations_is_refused():
    Y = torch.zeros(4, 2, 3)
    Y[:, 1, 0] = torch.nan
    with pytest.raises(ValueError, match=r"1 outputs have no observation at all \(the first: output 3\)"):
        OutputStatistics.of(Y)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_patterns_of_holes(share):
    Y = torch.randn(9, 4, 5)
    Y[torch.rand(9, 4, 5) < share] = torch.nan
    Y[0] = 1.0
    known = OutputStatistics.of(Y)
    flat = Y.flatten(1)
    pattern_of = torch.zeros(20, dtype=torch.long) if known.pattern_of is None else known.pattern_of
    assert torch.equal(known.observed[pattern_of].mT, ~flat.isnan())
    assert len(known.observed.unique(dim=0)) == len(known.observed)
    for gram, count, pattern in zip(known.grams, known.counts, range(len(known.grams)), strict=True):
        chosen = flat[:, pattern_of == pattern].nan_to_num().double()
        assert count == chosen.shape[1]
        torch.testing.assert_close(gram, chosen @ chosen.mT)
    assert known.is_complete == (share == 0)


@pytest.mark.parametrize("rows", [[0, 2, 5], [5, 3, 1, 0]], ids=["complete", "holes"])
def test_patterns_that_differ_in_other_rows_only_become_one(rows):
    Y = torch.randn(6, 8)
    Y[1, :3] = Y[4, 2:5] = torch.nan
    ours, theirs = OutputStatistics.of(Y).at_rows(torch.tensor(rows)), OutputStatistics.of(Y[rows])
    for name in ("observed", "counts", "pattern_of", "grams"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))


def test_statistics_know_their_outputs():
    Y = torch.randn(4, 6)
    known = OutputStatistics.of(Y)
    assert known.source.array is Y
    assert known.source.is_of(Y)
    assert known.source.is_of(Y.view(4, 6))
    assert not known.source.is_of(Y.clone())
    Y += 1
    assert not known.source.is_of(Y)


def test_read_only_arrays_are_fine(tmp_path):
    np.save(tmp_path / "Y.npy", np.ones((3, 8), dtype=np.float32))
    gram = gram_matrix(np.load(tmp_path / "Y.npy", mmap_mode="r"))
    assert torch.equal(gram, torch.full((3, 3), 8.0, dtype=torch.float64))
