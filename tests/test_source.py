"""Where outputs come from: any array is read as NumPy flattens it, in any chunks, and never copied as a whole."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from quick import quick_starts
from torch.utils._python_dispatch import TorchDispatchMode  # torch's documented way to see every operation

from pyro_gprn import CollapsedGPRN, GPRNRegressor, fit_collapsed, posterior_predictive
from pyro_gprn.outputs import source as source_module
from pyro_gprn.outputs.gram import OutputStatistics, StatisticsMemory, gram_matrix
from pyro_gprn.outputs.source import SAMPLE_SIZE, ArrayOutputs, Identity
from pyro_gprn.outputs.standardize import standardize


class Stored:
    """What zarr offers, and no more: a shape, a type, and copies of rectangular slices."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype
        self.largest_read = 0

    def __getitem__(self, index):
        for part in index if isinstance(index, tuple) else (index,):
            assert isinstance(part, int) or (isinstance(part, slice) and part.step in (None, 1)), index
        part = self._array[index].copy()
        self.largest_read = max(self.largest_read, part.size)
        return part


def in_fortran_order(array):
    return np.asfortranarray(array)


def backwards(array):
    return np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1]


def with_gaps(array):
    wide = np.full([2 * size for size in array.shape], -1.0, dtype=array.dtype)
    wide[tuple(slice(None, None, 2) for _ in array.shape)] = array
    return wide[tuple(slice(None, None, 2) for _ in array.shape)]


def transposed(array):
    return np.ascontiguousarray(array.T).T


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def field_of_records(array):
    records = np.zeros(array.shape, dtype=[("flag", np.int8), ("value", array.dtype)])
    records["value"] = array
    return records["value"]


def of_another_machine(array):
    return array.astype(array.dtype.newbyteorder(">"))


def in_torch(array):
    return torch.from_numpy(array)


def in_torch_with_gaps(array):
    return torch.from_numpy(with_gaps(array))


def in_torch_transposed(array):
    return torch.from_numpy(transposed(array))


LAYOUTS = [
    np.ascontiguousarray, in_fortran_order, backwards, with_gaps, transposed, read_only, field_of_records,
    of_another_machine, in_torch, in_torch_with_gaps, in_torch_transposed, Stored,
]  # fmt: skip
SHAPES = arrays.array_shapes(min_dims=2, max_dims=5, min_side=1, max_side=4)  # rows, and one to four modes


def outputs(dtypes=(np.float32, np.float64), shapes=SHAPES):
    numbers = st.sampled_from([np.nan, *np.linspace(-2, 2, 9)])
    return st.sampled_from(dtypes).flatmap(lambda dtype: arrays.arrays(dtype, shapes, elements=numbers))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_outputs_are_read_as_numpy_flattens_them(layout, data):
    Y = data.draw(outputs())
    flat, source = Y.reshape(len(Y), -1), ArrayOutputs(layout(Y))
    assert (source.shape, source.n_rows, source.n_outputs) == (Y.shape, *flat.shape)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, flat.shape[1])] * 2)))
    positions = data.draw(st.lists(st.integers(0, flat.shape[1] - 1), max_size=6))
    for choice in (slice(start, stop), slice(None), positions):
        block = source.read(torch.tensor(choice, dtype=torch.long) if isinstance(choice, list) else choice)
        expected = torch.from_numpy(flat[:, choice])
        assert block.dtype == source.dtype == expected.dtype
        torch.testing.assert_close(block, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 7), (3, 4, 5), (2, 3, 4, 2)], ids=str)
def test_a_memory_map_is_read_as_numpy_flattens_it(tmp_path, shape, dtype):
    np.save(tmp_path / "Y.npy", np.random.default_rng(0).normal(size=shape).astype(dtype))
    mapped = np.load(tmp_path / "Y.npy", mmap_mode="r")
    flat, source = np.array(mapped).reshape(shape[0], -1), ArrayOutputs(mapped)
    for choice in (slice(None), slice(3, 6)):
        torch.testing.assert_close(source.read(choice), torch.from_numpy(flat[:, choice]), rtol=0, atol=0)
    for choice in ([5, 0, 1, 2], [4]):
        expected = torch.from_numpy(flat[:, choice])
        torch.testing.assert_close(source.read(torch.tensor(choice)), expected, rtol=0, atol=0)


@settings(max_examples=30, deadline=None)
@given(Y=outputs(), chunk_bytes=st.sampled_from([1, 50, 1000, 10**6]))
def test_the_digest_and_the_chunks_are_those_of_the_values_however_they_are_stored(Y, chunk_bytes):
    expected = ArrayOutputs(Y.copy()).digest()
    for layout in LAYOUTS:
        source = ArrayOutputs(layout(Y))
        assert source.digest() == expected
        chunks = list(source.chunks(chunk_bytes))
        assert [place for positions, _ in chunks for place in range(*positions.indices(10**6))] == list(
            range(source.n_outputs)
        )
        whole = torch.cat([block for _, block in chunks], dim=1)
        torch.testing.assert_close(whole, torch.from_numpy(Y.reshape(len(Y), -1)), rtol=0, atol=0, equal_nan=True)
    assert ArrayOutputs(Y + 1).digest() != expected or np.isnan(Y).all()


HOLES = np.random.default_rng(0).normal(size=(5, 3, 4, 2))
HOLES[0, 1] = np.nan
HOLES[2:4, :, 2, 1] = np.nan


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_offers_only_slices_has_the_statistics_of_an_array(dtype):
    complete, holes = HOLES.astype(dtype)[:, 2:, :2], HOLES.astype(dtype)
    torch.testing.assert_close(gram_matrix(Stored(complete)), gram_matrix(complete))
    stored = Stored(complete)
    torch.testing.assert_close(gram_matrix(stored, chunk_bytes=8 * 5 * 2), gram_matrix(complete))
    assert stored.largest_read == 5 * 2  # no more than a chunk
    ours, theirs = OutputStatistics.of(Stored(holes)), OutputStatistics.of(torch.from_numpy(holes))
    for name in ("grams", "observed", "counts", "pattern_of"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))


def test_what_offers_only_slices_can_be_fitted_and_predicted():
    X = torch.linspace(0, 1, 8)[:, None]
    Y = torch.sin(3 * X + torch.linspace(0, 3, 12)).double().reshape(8, 3, 4)
    means = []
    for given_outputs in (Y, Stored(Y.numpy())):
        model = CollapsedGPRN(X, (3, 4), 1, effective_outputs="auto")
        fit = fit_collapsed(model, given_outputs, steps=2, seed=0, progress=False)
        predictive = posterior_predictive(model, fit.guide, X + 0.1, generator=torch.Generator().manual_seed(0))
        means.append(predictive.mean(([0, 2], slice(1, 3))))
    torch.testing.assert_close(means[1], means[0])


def densely(flat, scale):
    """Mean and scale of the outputs that have an observation, and what is then standardised."""
    seen = ~np.isnan(flat).all(0)
    values = flat[:, seen].astype(np.float64)
    mean = np.nanmean(values, axis=0)
    centred = values - mean
    spread = np.sqrt(np.nanmean(centred**2, axis=0))
    by = {"outputs": spread, "field": np.sqrt(np.nanmean(centred**2)), None: 1.0}[scale]
    tiny = 1e-5 * (np.abs(mean if scale == "outputs" else mean.max()) + by)
    by = np.where(by > tiny, by, 1.0)
    return seen, mean, spread, by, centred / by


@pytest.mark.parametrize("scale", ["outputs", "field", None])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_standardised_outputs_are_those_of_the_dense_answer_in_chunks_of_any_size(scale, data):
    Y = data.draw(outputs())
    width = data.draw(st.integers(1, 70))
    layout = data.draw(st.sampled_from([np.asarray, in_fortran_order, backwards, in_torch, Stored]))
    flat = Y.reshape(len(Y), -1)
    if np.isnan(flat).all():
        flat[0, 0] = 1.0
    seen, mean, spread, by, expected = densely(flat, scale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "CHUNK_BYTES", 8 * len(Y) * width)
        patch.setattr(source_module, "READ_BYTES", 8 * len(Y) * width)
        found = standardize(ArrayOutputs(layout(Y)), scale)
    np.testing.assert_allclose(found.mean, mean, atol=1e-12)
    np.testing.assert_allclose(found.spread, spread, atol=1e-12)
    np.testing.assert_allclose(found.scale, by, rtol=1e-12)
    assert (found.present is None) == seen.all()
    if found.present is not None:
        np.testing.assert_array_equal(found.present, np.flatnonzero(seen))
    known = found.statistics
    np.testing.assert_allclose(known.source.read(slice(None)), expected, atol=1e-12)
    dense = OutputStatistics.of(torch.from_numpy(expected))
    torch.testing.assert_close(known.observed, dense.observed)
    torch.testing.assert_close(known.counts, dense.counts)
    torch.testing.assert_close(known.grams, dense.grams, rtol=1e-12, atol=1e-12)
    assert (known.pattern_of is None) == (dense.pattern_of is None)
    if dense.pattern_of is not None:
        assert torch.equal(known.pattern_of, dense.pattern_of)


class Largest(TorchDispatchMode):
    """The largest piece of memory that torch takes, beside that of one array."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__()
        first = array.ctypes.data
        self._array, self.n_bytes = range(first, first + array.nbytes), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in self._array:
                self.n_bytes = max(self.n_bytes, each.untyped_storage().nbytes())
        return result


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A file of 40 MB: 40 rows of 500 × 500 outputs."""
    path = tmp_path_factory.mktemp("large") / "Y.npy"
    mapped = np.lib.format.open_memmap(path, "w+", np.float32, (40, 500, 500))
    mapped[:] = np.sin(np.linspace(0, 1, 40)[:, None, None] + np.linspace(0, 3, 500)[:, None] + np.linspace(0, 3, 500))
    mapped.flush()
    return path


@pytest.mark.parametrize("has_holes", [False, True])
def test_no_array_of_the_size_of_the_outputs_is_made(large, has_holes):
    Y = np.load(large, mmap_mode="c")  # changes stay in memory
    if has_holes:
        Y[3, :, 0] = np.nan
    X = np.linspace(0, 1, 40)[:, None]
    tracemalloc.start()
    try:
        with Largest(Y) as largest, quick_starts():
            r = GPRNRegressor(1, steps=2, seed=0, progress=False, selection=False).fit(X, Y)
            r.predict(X[:2], return_std=True)
            gram_matrix(Y, chunk_bytes=2**20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0 < largest.n_bytes <= Y.nbytes / 2  # of any one tensor
    assert peak <= Y.nbytes / 2  # of NumPy's arrays together


def test_what_notices_large_arrays_does_notice_them():
    Y = np.ones((10, 100_000), dtype=np.float32)
    with Largest(Y) as largest:
        shared = torch.from_numpy(Y)
        assert shared[:, 5:].sum() > 0
        assert largest.n_bytes < 1000
        assert (shared + 1).sum() > 0
    assert largest.n_bytes == Y.nbytes


@pytest.mark.parametrize("size", [30, 50_000])
@pytest.mark.parametrize("make", [np.array, torch.tensor, lambda values: torch.from_numpy(np.array(values))])
def test_a_change_through_numpy_is_noticed_where_it_touches_the_sample(size, make):
    Y = make(np.arange(float(size)).reshape(2, -1))
    known = StatisticsMemory()
    assert known.of(Y) is known.of(Y)
    values = np.asarray(Y)
    places = np.unique(np.linspace(0, size - 1, min(size, SAMPLE_SIZE)).astype(int))
    for place in places[[0, 1, len(places) // 2, -1]]:
        before = known.of(Y)
        values.reshape(-1)[place] += 1000.0
        after = known.of(Y)
        assert after is not before
        torch.testing.assert_close(after.gram, gram_matrix(values.copy()))


def test_a_change_through_torch_is_always_noticed():
    Y = torch.zeros(2, 30_000, dtype=torch.float64)
    known = StatisticsMemory()
    for place in range(0, 60_000, 997):
        before = known.of(Y)
        Y.view(-1)[place] += 1.0
        assert known.of(Y) is not before
    torch.testing.assert_close(known.of(Y).gram, Y @ Y.mT)


def test_another_array_in_the_memory_of_one_that_is_gone_is_another():
    identities = []
    for value in range(20):  # each is made where the one before was, if that is gone
        Y = np.full((2, 1000), 1.0)
        Y[1, 500] = value
        assert not any(identity.is_of(Y) for identity in identities)
        identities.append(Identity(Y))
        del Y


def test_holes_are_the_same_holes_again():
    Y = np.array([[np.nan, 1.0], [2.0, np.nan]])
    assert Identity(Y).is_of(Y)
