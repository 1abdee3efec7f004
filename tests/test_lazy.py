"""Outputs beyond memory: a dask or zarr array, or an xarray of one, gives the fit that an array in memory gives."""

import errno
import pickle
import warnings
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import quick_starts

from pyro_gprn import GPRNRegressor, diagnose
from pyro_gprn.archive import ArchiveError
from pyro_gprn.collapsed.conditioned import N_TYPICAL
from pyro_gprn.collapsed.output_scales import N_JUDGED
from pyro_gprn.estimator import selection
from pyro_gprn.estimator.scaling import are_a_field
from pyro_gprn.outputs import lazy as lazy_module
from pyro_gprn.outputs import one_pass, sums
from pyro_gprn.outputs.gram import GroupedStatistics
from pyro_gprn.outputs.lazy import DaskOutputs, UnreadableChunkError, with_whole_rows
from pyro_gprn.outputs.one_pass import standardize_lazily
from pyro_gprn.outputs.scattered import ScatteredStatistics
from pyro_gprn.outputs.source import ArrayOutputs
from pyro_gprn.outputs.spreads import Spreads
from pyro_gprn.outputs.standardize import standardize
from pyro_gprn.training.widening import Places, Widening

N, SHAPE = 12, (6, 10)
SETTINGS = {
    "steps": 10, "starts": ["independent"], "kernel_w": "rbf", "own_kernels": False, "selection": False, "seed": 0,
    "progress": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quickly_and_on_one_thread():
    with quick_starts(), dask.config.set(scheduler="synchronous"):  # the tests of schedulers set their own
        yield


@pytest.fixture(autouse=True)
def _chunk_by_chunk(request, monkeypatch):
    """A pass goes over chunks, also where outputs are so few that they could be one."""
    if "_whole" not in request.fixturenames:
        monkeypatch.setattr(lazy_module, "WHOLE_BYTES", 0)


@pytest.fixture
def _whole():
    """A pass takes few outputs as one chunk, as it does for users."""


@pytest.fixture
def _always_scattered(monkeypatch):
    """Holes are taken output by output, also where there are few outputs."""
    monkeypatch.setattr(sums, "_LITTLE", 0.0)
    monkeypatch.setattr(sums, "_PREFERENCE", 0.0)


def inputs(n=N):
    return np.random.default_rng(1).uniform(size=(n, 2))


def field(dtype=np.float64, holes="none", seed=0, noise=0.1):
    """Runs of a noisy bump that moves, with holes of a kind."""
    rng = np.random.default_rng(seed)
    places = np.linspace(0, 1, SHAPE[0])[:, None] + np.linspace(0, 1, SHAPE[1])
    runs = [np.exp(-0.5 * ((places - 1 - 0.4 * a) / (0.2 + 0.2 * b)) ** 2) for a, b in inputs()]
    Y = 3 + np.stack(runs) + noise * rng.normal(size=(N, *SHAPE))
    if holes in ("blocks", "empty"):
        Y[2:5, :3] = np.nan
        Y[8:, :, :2] = np.nan
    if holes == "empty":
        Y[:, 2:4, 3:6] = np.nan
    if holes == "scattered":
        Y[rng.uniform(size=Y.shape) < 0.1] = np.nan
    return Y.astype(dtype)


def regressor(n_latents=2, **changed):
    return GPRNRegressor(n_latents, **SETTINGS | changed)


def largest_difference(first, second):
    first, second = np.asarray(first), np.asarray(second)
    np.testing.assert_array_equal(np.isnan(first), np.isnan(second))
    return np.nanmax(np.abs(first - second)) / np.nanmax(np.abs(first))


def in_dask(Y, tmp_path):
    return da.from_array(Y, chunks=(5, 4, 3))


def in_zarr(Y, tmp_path):
    stored = zarr.create_array(tmp_path / "Y.zarr", shape=Y.shape, chunks=(5, 4, 3), dtype=Y.dtype)
    stored[:] = Y
    return stored


def in_dask_from_zarr(Y, tmp_path):
    return da.from_zarr(in_zarr(Y, tmp_path))


def in_xarray(Y, tmp_path):
    coordinates = {"row": np.arange(SHAPE[0]) * 10, "time": ("column", np.linspace(0, 1, SHAPE[1]))}
    data = in_dask(Y, tmp_path)
    return xr.DataArray(data, dims=("run", "row", "column"), coords=coordinates, name="T", attrs={"units": "K"})


def in_xarray_from_zarr(Y, tmp_path):
    in_xarray(Y, tmp_path).to_dataset().to_zarr(tmp_path / "T.zarr", consolidated=False)
    return xr.open_zarr(tmp_path / "T.zarr", consolidated=False)["T"]


def in_xarray_without_dask(Y, tmp_path):
    in_xarray_from_zarr(Y, tmp_path)
    return xr.open_zarr(tmp_path / "T.zarr", consolidated=False, chunks=None)["T"]


def in_a_memory_map(Y, tmp_path):
    np.save(tmp_path / "Y.npy", Y)
    return np.load(tmp_path / "Y.npy", mmap_mode="r")


STORED = [
    in_dask, in_zarr, in_dask_from_zarr, in_xarray, in_xarray_from_zarr, in_xarray_without_dask, in_a_memory_map
]  # fmt: skip
CHUNKS = st.tuples(*(st.integers(1, size) for size in (N, *SHAPE)))


@settings(max_examples=20, deadline=None)
@given(
    chunks=CHUNKS,
    holes=st.sampled_from(["none", "blocks", "scattered", "empty"]),
    scale=st.sampled_from(["field", "outputs", None]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_any_chunks_give_the_statistics_of_an_array_in_memory(chunks, holes, scale, dtype):
    Y = field(dtype, holes)
    expected = standardize(ArrayOutputs(Y), scale)
    found = standardize_lazily(DaskOutputs(da.from_array(Y, chunks=chunks)), scale)
    known, other = found.statistics, expected.statistics
    assert type(known) is type(other)
    torch.testing.assert_close(known.observed, other.observed, rtol=0, atol=0)
    torch.testing.assert_close(known.counts, other.counts, rtol=0, atol=0)
    torch.testing.assert_close(known.gram_of_observed, other.gram_of_observed, rtol=1e-13, atol=1e-13)
    everything = torch.arange(known.source.n_outputs)
    assert (found.present is None) == (expected.present is None)
    torch.testing.assert_close(known.source.read(everything), other.source.read(everything), equal_nan=True)
    torch.testing.assert_close(known.patterns_at(everything), other.patterns_at(everything), rtol=0, atol=0)


@pytest.mark.parametrize("holes", ["none", "blocks", "scattered", "empty"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-6)])
def test_a_lazy_fit_has_the_bound_and_the_predictions_of_one_in_memory(holes, dtype, tolerance, request):
    if holes == "scattered":
        request.getfixturevalue("_always_scattered")
    Y, X_new = field(dtype, holes), inputs(17)[12:]
    expected, found = regressor().fit(inputs(), Y), regressor().fit(inputs(), da.from_array(Y, chunks=(5, 4, 3)))
    kind = ScatteredStatistics if holes == "scattered" else GroupedStatistics
    assert isinstance(found.fitted_.known, kind)
    assert abs(found.elbo_ - expected.elbo_) <= tolerance * abs(expected.elbo_)
    both, lazily = expected.predict(X_new, return_std=True), found.predict(X_new, return_std=True)
    both += tuple(expected.predict(X_new, quantiles=(0.05, 0.8)))
    lazily += tuple(found.predict(X_new, quantiles=(0.05, 0.8)))
    both += (expected.log_predictive_density(X_new, Y[:5]),)
    lazily += (found.log_predictive_density(X_new, Y[:5]),)
    for one, other in zip(both, lazily, strict=True):
        assert isinstance(other, da.Array)
        assert other.dtype == Y.dtype
        assert other.chunks[1:] == ((4, 2), (3, 3, 3, 1))
        assert largest_difference(one, other) <= tolerance
    assert abs(expected.score(X_new, Y[:5]) - found.score(X_new, Y[:5])) <= tolerance


@pytest.mark.parametrize("holes", ["none", "scattered"])
def test_intervals_by_output_and_place_are_those_of_a_fit_in_memory(holes, request):
    if holes == "scattered":
        request.getfixturevalue("_always_scattered")
    Y, X_new = field(np.float64, holes), inputs(17)[12:]
    widening = Widening(1.2, 0.7, (0.2, 3.0), places=Places(0.6, 0.4, 1.5))
    found = []
    for outputs in (Y, da.from_array(Y, chunks=(5, 4, 3))):
        r = regressor().fit(inputs(), outputs)
        r._set_fitted(replace(r.fitted_, widening=widening))
        mean, deviation = r.predict(X_new, return_std=True)
        draws = np.asarray(r.sample(X_new, 4000))
        np.testing.assert_allclose(draws.std(0), deviation, rtol=0.25)
        found.append(
            [mean, deviation, *r.predict(X_new, quantiles=(0.05, 0.8)), r.log_predictive_density(X_new, Y[:5])]
        )
    for one, other in zip(*found, strict=True):
        assert largest_difference(one, other) <= 1e-9


@pytest.mark.usefixtures("_whole")
@pytest.mark.parametrize("holes", ["none", "blocks", "scattered", "empty"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-6)])
def test_a_fit_is_the_same_to_the_bit_wherever_outputs_lie_and_in_any_chunks(holes, dtype, tolerance, tmp_path):
    # 1 % noise, folds, several starts and kernels: a last digit that differs would be carried on to the seventh.
    Y, X_new = field(dtype, holes, noise=0.01), inputs(17)[12:]
    expected = GPRNRegressor(2, steps=30, seed=0, progress=False).fit(inputs(), Y)
    deviation = expected.predict(X_new, return_std=True)[1]
    for other in (in_a_memory_map(Y, tmp_path), da.from_array(Y, chunks=(5, 4, 3)), da.from_array(Y, chunks=(1, 6, 1))):
        found = GPRNRegressor(2, steps=30, seed=0, progress=False).fit(inputs(), other)
        assert found.elbo_ == expected.elbo_
        assert largest_difference(deviation, found.predict(X_new, return_std=True)[1]) <= tolerance


@pytest.mark.parametrize("store", STORED, ids=lambda store: store.__name__)
def test_predictions_come_back_as_the_outputs_came(store, tmp_path):
    Y, X_new = field(), inputs(15)[12:]
    expected = regressor().fit(inputs(), Y)
    stored = store(Y, tmp_path)
    r = regressor().fit(inputs(), stored)
    mean, deviation = r.predict(X_new, return_std=True)
    draws = r.sample(X_new, 4)
    assert draws.shape == (4, 3, *SHAPE)
    if isinstance(stored, np.memmap):
        assert type(mean) is np.ndarray
        assert largest_difference(expected.predict(X_new), mean) <= 1e-10
        return
    assert largest_difference(expected.predict(X_new), mean) <= 1e-10
    if not isinstance(stored, xr.DataArray):
        assert isinstance(mean, da.Array)
        assert isinstance(draws, da.Array)
        return
    for array, name in ((mean, "T"), (deviation, "T_std"), (draws, "T")):
        assert array.chunks is not None
        assert array.name == name
        assert array.attrs == stored.attrs
        assert array.dims[-3:] == stored.dims
        for coordinate in ("row", "time"):
            xr.testing.assert_equal(array[coordinate], stored[coordinate])


def test_predictions_are_written_to_a_store_chunk_by_chunk(tmp_path):
    Y, X_new = field(np.float32), inputs(15)[12:]
    r = regressor().fit(inputs(), in_xarray_from_zarr(Y, tmp_path))
    mean, deviation = r.predict(X_new, return_std=True)
    xr.Dataset({"mean": mean, "deviation": deviation}).to_zarr(tmp_path / "predicted.zarr", consolidated=False)
    written = xr.open_zarr(tmp_path / "predicted.zarr", consolidated=False)
    np.testing.assert_array_equal(written["mean"], mean)
    np.testing.assert_array_equal(written["deviation"], deviation)
    assert written["mean"].chunks == ((3,), (4, 2), (3, 3, 3, 1))


def test_flat_outputs_are_seen_as_a_field_and_a_vector_as_one_output():
    Y, X_new = field(), inputs(15)[12:]
    flat = da.from_array(Y.reshape(N, -1), chunks=(4, 7))
    r = regressor(output_shape=SHAPE).fit(inputs(), flat)
    assert r.output_shape_ == SHAPE
    assert r.predict(X_new).shape == (3, 60)
    assert (
        largest_difference(
            regressor(output_shape=SHAPE).fit(inputs(), Y).predict(X_new).reshape(3, 60), r.predict(X_new)
        )
        < 1e-10
    )
    vector = regressor(1).fit(inputs(), da.from_array(Y[:, 3, 3], chunks=5))
    assert vector.predict(X_new).shape == (3,)
    assert largest_difference(regressor(1).fit(inputs(), Y[:, 3, 3]).predict(X_new), vector.predict(X_new)) < 1e-10


def test_draws_are_joint_over_chunks_and_have_the_moments_of_predictions():
    Y, X_new = field(), inputs(14)[12:]
    r = regressor().fit(inputs(), da.from_array(Y, chunks=(N, 3, 5)))
    draws = r.sample(X_new, 4000, seed=3).compute()
    np.testing.assert_array_equal(draws[:10], r.sample(X_new, 4000, seed=3)[:10])
    assert np.abs(draws - r.sample(X_new, 4000, seed=4).compute()).max() > 0.1
    mean, deviation = r.predict(X_new, return_std=True)
    assert np.abs((draws.mean(0) - mean) / deviation).max() < 5 / 4000**0.5
    np.testing.assert_allclose(draws.std(0) / deviation.compute(), 1.0, atol=0.12)
    # Given the functions, outputs of different chunks are independent; over draws of the functions they are not: the
    # covariance over all outputs is that of draws in memory.
    in_memory = regressor().fit(inputs(), Y).sample(X_new, 4000, seed=5)
    of_chunks, of_all = (np.cov(each[:, 0, :, 4].T) for each in (draws, in_memory))
    assert np.abs(of_chunks - of_all).max() < 0.15 * of_all.max()
    assert np.abs(np.corrcoef(draws[:, 0, 0, 0], draws[:, 0, 0, 5])[0, 1]) < 0.9  # not the same noise in two chunks


def test_a_fit_reads_every_chunk_once_and_a_prediction_only_those_that_are_computed():
    Y, reads = field(), []

    def counted(block, block_id=None):
        reads.append(block_id)
        return block

    array = da.from_array(Y, chunks=(N, 3, 5)).map_blocks(counted, dtype=Y.dtype, meta=np.empty((0, 0, 0)))
    r = GPRNRegressor(2, steps=5, seed=0, progress=False).fit(inputs(), array)  # with folds, starts and kernels
    assert sorted(reads) == [(0, i, j) for i in range(2) for j in range(2)]
    mean, deviation = r.predict(inputs(14)[12:], return_std=True)
    quantiles = r.predict(inputs(14)[12:], quantiles=(0.1,))
    assert len(reads) == 4  # nothing yet, scales included
    dask.compute(mean[:, :2, :3], deviation[:, :2, :3], quantiles[0][:, :2, :3])
    assert reads[4:] == [(0, 0, 0)]


def test_the_outputs_that_are_kept_are_those_that_a_fit_looks_at_again():
    assert (one_pass.N_COORDINATES, one_pass.N_JUDGED, one_pass.N_SCORED) == (N_TYPICAL, N_JUDGED, selection.N_SCORED)


@pytest.mark.parametrize("n_outputs", [10**8, 2**31 + 1])
def test_evenly_spread_outputs_are_outputs_also_where_float32_cannot_count_them(n_outputs):
    for positions in (one_pass._typical(n_outputs).tolist(), selection.evenly_spread((n_outputs,), 4096)[0]):
        assert positions[0] == 0
        assert positions[-1] == n_outputs - 1
        assert positions == sorted(set(positions))


def test_the_spreads_of_parts_are_merged_to_those_of_all():
    spread = torch.logspace(-3, 2, 500).double()[torch.randperm(500)]
    spread[[0, 10, 400]] = 0.0
    whole = Spreads.of(spread)
    merged = Spreads.of(spread[:0])
    for part in spread.split(7):
        merged = merged.merge(Spreads.of(part))
    torch.testing.assert_close(merged.counts, whole.counts)
    assert merged.mean_step == pytest.approx(whole.mean_step)
    varying = spread[spread > 0]
    assert whole.median() == pytest.approx(varying.median().item(), rel=0.02)
    assert whole.mean_step == pytest.approx(varying.log10().diff().abs().mean().item())
    assert not are_a_field(whole)


def test_a_table_of_many_columns_is_scaled_column_by_column_also_from_chunks():
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(N, 150)) * 10 ** rng.uniform(-4, 4, size=150)
    r = regressor().fit(inputs(), da.from_array(Y, chunks=(5, 40)))
    assert r.fitted_.known.source.standard.kind == "outputs"
    expected = regressor().fit(inputs(), Y).predict(inputs()[:3])
    np.testing.assert_allclose(
        r.predict(inputs()[:3]).compute() / np.abs(Y).max(0), expected / np.abs(Y).max(0), atol=1e-9
    )


def test_a_chunk_has_all_rows_and_is_divided_where_it_would_be_too_large(monkeypatch):
    monkeypatch.setattr(lazy_module, "MOST_BYTES", 8 * 100 * 30)
    wide = with_whole_rows(da.zeros((100, 400), chunks=(1, 400)))
    assert wide.numblocks[0] == 1
    assert max(wide.chunks[1]) <= 30
    assert with_whole_rows(da.zeros((100, 20), chunks=(1, 10))).chunks == ((100,), (10, 10))


def failing(*chunks):
    """Passes chunks on, but for some that cannot be read."""

    def read(block, block_id=None):
        if block_id in chunks:
            raise OSError(errno.EIO, "Input/output error")
        return block

    return read


def test_a_chunk_that_cannot_be_read_is_named_and_nothing_is_half_fitted():
    Y = da.from_array(field(), chunks=(N, 3, 5))
    broken = Y.map_blocks(failing((0, 1, 0)), dtype=Y.dtype, meta=np.empty((0, 0, 0)))
    r = regressor()
    with pytest.raises(
        UnreadableChunkError, match=r"chunk \(1, 0\) of Y \(all rows of the outputs \[3:6, 0:5\]\).*Input/output"
    ):
        r.fit(inputs(), broken)
    assert not hasattr(r, "fitted_")
    before = r.fit(inputs(), Y).fitted_
    with pytest.raises(UnreadableChunkError):
        r.fit(inputs(), broken)
    assert r.fitted_ is before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda Y: Y[Y[:, 0, 0] > 0], "chunks of unknown size.*compute_chunk_sizes"),
        (lambda Y: Y.astype(object), "must hold numbers; got an array of dtype object"),
        (lambda Y: Y.astype(complex), "must hold real numbers; got an array of dtype complex128"),
        (lambda Y: Y[:0], "at least one row"),
        (lambda Y: Y[:5], "as many rows as each other; got 12 and 5"),
    ],
    ids=["unknown chunks", "objects", "complex", "empty", "rows"],
)
def test_what_cannot_be_fitted_is_refused_before_anything_is_read(make, message):
    read = []
    Y = da.from_array(field(), chunks=(N, 3, 5)).map_blocks(
        lambda block: read.append(1) or block, dtype=float, meta=np.empty((0, 0, 0))
    )
    with pytest.raises(ValueError, match=message):
        regressor().fit(inputs(), make(Y))
    assert not read


def test_infinite_and_missing_outputs_get_errors_of_their_own():
    Y = field()
    Y[3, 4, 7] = np.inf
    with pytest.raises(ValueError, match=r"contains infinity.*chunk \(1, 1\)"):
        regressor().fit(inputs(), da.from_array(Y, chunks=(N, 3, 5)))
    with pytest.raises(ValueError, match=r"every number of Y is missing"):
        regressor().fit(inputs(), da.full((N, 4, 5), np.nan, chunks=3))


def test_integers_masks_and_short_floats_are_taken():
    whole = da.from_array(np.random.default_rng(0).integers(0, 50, (N, 5)), chunks=3)
    assert regressor(1).fit(inputs(), whole).predict(inputs()[:2]).dtype == np.float64
    assert regressor(1).fit(inputs(), whole.astype(np.float16)).predict(inputs()[:2]).dtype == np.float32
    masked = da.ma.masked_greater(whole, 40)
    expected = regressor(1).fit(inputs(), np.where(whole.compute() > 40, np.nan, whole.compute()))
    new = inputs()[:2] + 0.01  # missing numbers of training rows are filled where Y is in memory alone
    found = regressor(1).fit(inputs(), masked).predict(new)
    assert largest_difference(expected.predict(new), found) < 1e-10


def test_too_many_holes_of_their_own_are_refused_in_place_of_filling_memory(monkeypatch):
    monkeypatch.setattr(one_pass, "MOST_HELD", 300)
    with pytest.raises(ValueError, match="so many outputs have holes of their own"):
        regressor().fit(inputs(), da.from_array(field(holes="scattered"), chunks=(N, 3, 5)))


def test_a_lazy_fit_is_saved_without_outputs_and_finds_its_store_again(tmp_path):
    for name, store in (("zarr", in_zarr), ("xarray", in_xarray_from_zarr)):
        Y = store(field(np.float32, "blocks"), tmp_path)
        r = regressor().fit(inputs(), Y)
        r.save(tmp_path / name)
        loaded = GPRNRegressor.load(tmp_path / name)
        expected, found = (each.predict(inputs(15)[12:], return_std=True) for each in (r, loaded))
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="with_data must be None or False"):
        r.save(tmp_path / "other", with_data=True)


def test_a_file_holds_nothing_of_the_outputs(tmp_path):
    Y = np.random.default_rng(0).normal(size=(N, 5000)) + 7
    r = regressor(1).fit(inputs(), da.from_array(Y, chunks=(N, 1000)))
    r.save(tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    assert len(content) < Y.nbytes / 4
    for values in (Y, Y - Y.mean(0)):
        assert not any(values[n, d : d + 1].tobytes() in content for n in range(N) for d in range(0, 5000, 50))


def test_loading_says_when_the_store_has_changed_or_is_gone(tmp_path):
    Y = in_zarr(field(), tmp_path)
    regressor().fit(inputs(), Y).save(tmp_path / "file")
    (tmp_path / "Y.zarr").rename(tmp_path / "moved.zarr")
    with pytest.raises(ArchiveError, match=r"Y\.zarr is gone.*pass the same Y"):
        GPRNRegressor.load(tmp_path / "file")
    moved = zarr.open_array(tmp_path / "moved.zarr", mode="r+")
    assert GPRNRegressor.load(tmp_path / "file", Y=moved).predict(inputs()[:2]).shape == (2, *SHAPE)
    assert GPRNRegressor.load(tmp_path / "file", Y=da.from_array(field(), chunks=2)).predict(inputs()[:2]).shape
    with pytest.raises(ArchiveError, match=r"Y is not what the estimator.*was fitted to"):
        GPRNRegressor.load(tmp_path / "file", Y=da.from_array(field(seed=1), chunks=4))
    moved[4, 0, 0] += 1.0
    (tmp_path / "moved.zarr").rename(tmp_path / "Y.zarr")
    with pytest.raises(ArchiveError, match=r"what is stored in .*Y\.zarr is not what.*was fitted to"):
        GPRNRegressor.load(tmp_path / "file")


def test_what_was_computed_from_a_store_is_not_taken_for_it(tmp_path):
    Y = da.from_zarr(in_zarr(field(), tmp_path)) * 2
    regressor().fit(inputs(), Y).save(tmp_path / "file")
    with pytest.raises(ArchiveError, match=r"pass the same Y, load\(path, Y=Y\)"):
        GPRNRegressor.load(tmp_path / "file")
    assert GPRNRegressor.load(tmp_path / "file", Y=Y).predict(inputs()[:2]).shape == (2, *SHAPE)


@pytest.mark.usefixtures("_always_scattered")
def test_scattered_holes_are_summed_again_when_a_file_is_loaded(tmp_path):
    r = regressor().fit(inputs(), in_zarr(field(holes="scattered"), tmp_path))
    r.save(tmp_path / "file")
    loaded = GPRNRegressor.load(tmp_path / "file")
    assert largest_difference(r.predict(inputs()[:2]), loaded.predict(inputs()[:2])) < 1e-12


def test_a_store_of_pickles_is_not_opened(tmp_path):
    from pyro_gprn.outputs.store import StoreError, open_store

    stored = zarr.create_array(tmp_path / "Y.zarr", shape=(2, 2), dtype=float, zarr_format=2, compressors=None)
    metadata = tmp_path / "Y.zarr/.zarray"
    metadata.write_text(metadata.read_text().replace('"compressor": null', '"compressor": {"id": "pickle"}'))
    assert "pickle" in metadata.read_text()
    with pytest.raises(StoreError, match="pickle"):
        open_store({"store": str(tmp_path / "Y.zarr"), "array": stored.path})
    with pytest.raises(StoreError, match="none on this machine"):
        open_store({"store": "s3://somebody/Y.zarr", "array": ""})


class FullDisk(zarr.storage.LocalStore):
    """A store whose disk is full after some chunks."""

    room = 3

    async def set(self, key, value):
        if "c/" in key:
            if self.room == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room -= 1
        await super().set(key, value)


def test_a_full_disk_is_an_error_and_what_was_written_is_whole_chunks(tmp_path):
    r = regressor().fit(inputs(), da.from_array(field(), chunks=(N, 3, 5)))
    mean = r.predict(inputs()[:4])
    expected = mean.compute()
    target = zarr.create_array(
        FullDisk(tmp_path / "full"), shape=mean.shape, chunks=(4, 3, 5), dtype=float, fill_value=np.nan
    )
    # One chunk after another: with threads the error may come while an earlier chunk is still on its way to the disk.
    with dask.config.set(scheduler="synchronous"), pytest.raises(OSError, match="No space left"):
        mean.to_zarr(target)
    written = zarr.open_array(tmp_path / "full", mode="r")[:]
    is_whole = [
        np.allclose(written[:, i : i + 3, j : j + 5], expected[:, i : i + 3, j : j + 5], rtol=1e-12, atol=0)
        for i in (0, 3) for j in (0, 5)
    ]  # fmt: skip
    is_empty = [np.isnan(written[:, i : i + 3, j : j + 5]).all() for i in (0, 3) for j in (0, 5)]
    assert sum(is_whole) == 3
    assert sum(is_empty) == 1


def test_a_lazy_fit_is_diagnosed_pickled_and_continued(tmp_path):
    Y = da.from_array(field(), chunks=(N, 3, 5))
    r = regressor(warm_start=True, checkpoint=tmp_path / "checkpoint").fit(inputs(), Y)
    assert "R²" in str(diagnose(r)) or str(diagnose(r))
    again = pickle.loads(pickle.dumps(r))
    np.testing.assert_array_equal(again.predict(inputs()[:2]), r.predict(inputs()[:2]))
    assert r.fit(inputs(), Y).elbo_ is not None


def test_other_methods_read_lazy_outputs_into_memory():
    Y = da.from_array(field(), chunks=(N, 3, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = GPRNRegressor(1, inference="mean-field", steps=2, seed=0, progress=False).fit(inputs(), Y)
    assert isinstance(found.predict(inputs()[:2]), np.ndarray)


def test_the_pass_shows_progress(capsys):
    regressor(progress=True).fit(inputs(), da.from_array(field(), chunks=(N, 3, 5)))
    assert "reading Y" in capsys.readouterr().err
