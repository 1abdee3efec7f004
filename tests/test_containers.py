"""Reading arrays of every kind, telling rows that do not belong together, and giving predictions back."""

import tracemalloc
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
import xarray as xr

from pyro_gprn.archive import read_archive, write_archive
from pyro_gprn.estimator.containers import check_rows, library_of, read_inputs, read_outputs
from pyro_gprn.estimator.template import Template

GOLDEN = Path(__file__).parent / "golden"


# Reading


def test_masked_outputs_are_missing_and_the_given_array_stays_as_it_is():
    given = np.ma.masked_values(np.array([[1.0, 9.97e36], [3.0, 4.0]], dtype=np.float32), np.float32(9.97e36))
    np.testing.assert_array_equal(read_outputs(given), np.array([[1, np.nan], [3, 4]], dtype=np.float32))
    assert read_outputs(given).dtype == torch.float32
    assert given.data[0, 1] == np.float32(9.97e36)
    counts = np.ma.masked_equal(np.array([[1, -9], [3, 4]], dtype=np.int8), -9)
    np.testing.assert_array_equal(read_outputs(counts), [[1, np.nan], [3, 4]])
    assert read_outputs(counts).dtype == torch.float64


def test_a_masked_array_with_nothing_masked_is_not_copied():
    numbers = np.ones((3, 4))
    assert read_outputs(np.ma.masked_invalid(numbers, copy=False)).data_ptr() == numbers.ctypes.data


def test_masked_inputs_are_refused_with_their_row():
    inputs = np.ma.masked_greater(np.arange(6.0).reshape(3, 2), 3.5)
    with pytest.raises(ValueError, match=r"X is masked in 1 of 3 rows \(the first: row 2\)"):
        read_inputs(inputs)
    np.testing.assert_array_equal(read_inputs(inputs[:2]), [[0, 1], [2, 3]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_views_that_go_backwards_are_read(dtype):
    array = np.arange(24, dtype=dtype).reshape(4, 6)
    torch.from_numpy(read_inputs(array[::-1]))
    np.testing.assert_array_equal(read_inputs(array[::-1, ::-2]), array[::-1, ::-2])
    np.testing.assert_array_equal(read_outputs(array[::-1, ::-2]), array[::-1, ::-2])


def _views():
    array = np.arange(24.0).reshape(2, 3, 4)
    frozen = array.copy()
    frozen.flags.writeable = False
    return {
        "read-only": frozen,
        "gaps": array[:, ::2, 1:],
        "transposed": array.T,
        "Fortran's order": np.asfortranarray(array),
        "read-only with gaps": frozen[:, :, ::3],
        "one number many times": np.broadcast_to(1.0, (2, 3)),
    }


@pytest.mark.parametrize("view", _views())
def test_outputs_share_the_memory_of_any_view(view):
    array = _views()[view]
    outputs = read_outputs(array)
    assert outputs.data_ptr() == array.ctypes.data
    np.testing.assert_array_equal(outputs, array)


@pytest.mark.parametrize("given", [np.arange(6, dtype=">f4").reshape(2, 3), np.zeros(3, dtype="f4,f8")["f1"]], ids=str)
def test_memory_that_torch_cannot_address_is_copied(given):
    np.testing.assert_array_equal(read_outputs(given), given)


def test_a_memory_map_is_neither_copied_nor_looked_through(tmp_path):
    np.save(tmp_path / "Y.npy", np.zeros((8, 1_000_000), dtype=np.float32))
    mapped = np.load(tmp_path / "Y.npy", mmap_mode="r")
    tracemalloc.start()
    try:
        outputs = read_outputs(mapped)
        assert tracemalloc.get_traced_memory()[1] < 100_000  # of 32 million
    finally:
        tracemalloc.stop()
    assert outputs.data_ptr() == mapped.ctypes.data
    del mapped
    assert outputs.sum() == 0  # the tensor keeps the map open


def test_large_finite_numbers_pass():
    assert read_outputs(np.full((2, 3), 1e37, dtype=np.float32)).isfinite().all()


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.ones(3, dtype=np.float16), torch.float32),
        (np.ones(3, dtype=np.longdouble), torch.float64),
        (np.ones(3, dtype=np.uint16), torch.float64),
        (np.ones(3, dtype=bool), torch.float64),
        ([1, 2], torch.float64),
        (torch.ones(3, dtype=torch.bfloat16), torch.float32),
        (torch.ones(3, dtype=torch.int32), torch.float64),
        (torch.ones(3, dtype=torch.float32).requires_grad_(), torch.float32),
        (pd.Series([1, None], dtype="Int64"), torch.float64),
        (pd.DataFrame({"a": [1, 2.5], "b": [True, False]}, dtype=object), torch.float64),
    ],
    ids=lambda value: getattr(value, "dtype", value),
)
def test_numbers_of_every_type_become_floating(given, dtype):
    assert read_outputs(given).dtype == dtype
    assert not read_outputs(given).requires_grad


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (np.array([1j, 2]), ValueError, "Complex data not supported"),
        (torch.tensor([1j, 2]), ValueError, "Complex data not supported"),
        (np.array([1, None, "a"]), ValueError, "Y must hold numbers; got an array of dtype object"),
        (pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}), ValueError, "Y must hold numbers"),
        (["1.5", "2.5"], ValueError, "Y must hold numbers; got an array of dtype <U3"),
        (np.array(["2026-01-01"], dtype="M8[D]"), ValueError, "Y must hold numbers; got an array of dtype datetime64"),
        (np.ma.masked_equal(np.array(["a", "b"]), "b"), ValueError, "Y must hold numbers; got an array of dtype <U1"),
        (scipy.sparse.eye(3), TypeError, "Sparse data was passed for Y"),
        (torch.eye(3).to_sparse(), TypeError, "Y must be dense"),
        (xr.Dataset({"a": ("x", [1.0])}), TypeError, "xarray.Dataset"),
        (3.0, ValueError, "got a single number"),
        (xr.DataArray(3.0), ValueError, "got a single number"),
        (np.ones((3, 0)), ValueError, "0 feature"),
        (torch.ones(3, 0), ValueError, r"at least one row and one output; got shape \(3, 0\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_array_of_numbers_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        read_outputs(given)


def test_arrays_of_other_libraries_count_as_numpy_and_subclasses_as_their_parents():
    class Chunked:  # as dask's and zarr's: sliced, with a shape and a type
        shape, dtype, ndim = (2, 3), np.dtype(float), 2

    class Table(pd.DataFrame):
        pass

    assert library_of(Chunked()) == "numpy"
    assert library_of(pd.Index([1, 2])) == "numpy"  # it has neither rows nor columns to name
    assert library_of(Table()) == "pandas"
    assert library_of(torch.nn.Parameter(torch.ones(2))) == "torch"
    check_rows(Chunked(), Table())


# Rows

RUNS = ["a", "b", "c"]


def frame(index=None):
    return pd.DataFrame(np.ones((3, 2)), index=index)


def array(labels=None, rows="run"):
    return xr.DataArray(np.ones((3, 2)), dims=(rows, "x"), coords={} if labels is None else {rows: labels})


@pytest.mark.parametrize(
    ("X", "Y"),
    [
        (frame(RUNS), frame(RUNS)),
        (frame(["a", "a", "b"]), frame(["a", "a", "b"])),
        (frame(RUNS), frame()),
        (frame(), frame(RUNS)),
        (frame([5, 6, 7]), frame()),
        (frame(RUNS), np.ones((3, 2))),
        (frame(RUNS), torch.ones(3, 2)),
        (frame(RUNS), array(RUNS)),
        (frame([1, 2, 3]), frame([1.0, 2.0, 3.0])),
        (frame([1.0, np.nan, 2.0]), array([1.0, np.nan, 2.0])),
        (frame(pd.date_range("2026-01-01", periods=3)), array(np.arange("2026-01-01", "2026-01-04", dtype="M8[D]"))),
        (array(RUNS), array(RUNS)),
        (array(RUNS), array()),
        (array(), array(RUNS)),
        (array(RUNS), frame()),
        (frame(RUNS), pd.Series([1.0, 2.0], index=["x", "y"])),  # other numbers of rows have their own error
        (frame(RUNS), xr.DataArray(3.0)),
        (frame(RUNS), None),
    ],
)
def test_rows_with_the_same_labels_or_without_any_belong_together(X, Y):
    check_rows(X, Y)


@pytest.mark.parametrize(
    ("X", "Y", "message"),
    [
        (frame(RUNS), frame(["a", "c", "b"]), r"row 1 is 'b' in X and 'c' in Y.*Y = Y.loc\[X.index\]"),
        (frame([1, 2, 3]), frame([1, 2, 4]), "row 2 is 3 in X and 4 in Y"),
        (frame(pd.RangeIndex(3)[::-1]), frame([1, 2, 0]), "row 0 is 2 in X and 1 in Y"),
        (array(RUNS), array(["c", "b", "a"]), r"row 0 is 'a' in X and 'c' in Y.*X, Y = xarray.align\(X, Y\)"),
        (array([0, 1, 2]), array([0, 2, 1]), "row 1 is 1 in X and 2 in Y"),
        (array(RUNS, "sample"), array(["c", "b", "a"]), r"Y = Y.sel\({'run': X.get_index\('sample'\)}\)"),
        (frame(RUNS), array(["a", "b", "d"]), r"row 2 is 'c' in X and 'd' in Y.*Y = Y.sel\({'run': X.index}\)"),
        (array(RUNS), frame(["a", "b", "d"]), r"row 2 is 'c' in X and 'd' in Y.*Y = Y.loc\[X.get_index\('run'\)\]"),
        (frame([(1, 2), (1, 3), (2, 2)]), frame([(1, 2), (1, 4), (2, 2)]), r"row 1 is \(1, 3\) in X and \(1, 4\) in Y"),
    ],
)
def test_rows_with_other_labels_are_refused(X, Y, message):
    with pytest.raises(ValueError, match=message):
        check_rows(X, Y)


@pytest.mark.parametrize("X", [frame(RUNS), array(RUNS)], ids=["pandas", "xarray"])
@pytest.mark.parametrize("Y", [frame(["c", "a", "b"]), array(["c", "a", "b"])], ids=["pandas", "xarray"])
def test_the_advice_of_the_error_works(X, Y):
    with pytest.raises(ValueError, match=r"with .*; or") as refused:
        check_rows(X, Y)
    names = {"X": X, "Y": Y, "xarray": xr}
    exec(str(refused.value).split(" with ")[-1].split(";")[0], names)
    check_rows(names["X"], names["Y"])
    assert len(names["Y"]) == 3


# Giving back


def through_a_file(template, folder):
    write_archive(folder / "template", "template", template.describe())
    return Template.rebuild(read_archive(folder / "template", "template"))


def template_of(Y, present=None):
    return Template.of(Y, read_outputs(Y), present)


def ocean():
    """Outputs with everything that an xarray can say of itself."""
    return xr.DataArray(
        np.ones((3, 2, 2), dtype=np.float32),
        dims=("run", "y", "x"),
        coords={
            "run": RUNS,
            "y": ("y", [10.0, 0.0], {"units": "m"}),
            "lat": (("y", "x"), [[50.0, 51.0], [52.0, 53.0]], {"units": "degrees_north"}),
            "basin": ("x", ["north", "south"]),
            "time": np.datetime64("2026-01-31", "ns"),
            "depth": ((), 5.0, {"positive": "down"}),
            "scenario": ("run", [1, 2, 3]),
            "of_run_and_x": (("run", "x"), np.ones((3, 2))),
        },
        name="temperature",
        attrs={"units": "K", "valid_range": np.array([270.0, 310.0]), "history": ["made", "read"], "code": 7},
    )


def test_an_xarray_comes_back_with_all_it_said_of_the_outputs(tmp_path):
    Y = ocean()
    for template in (template_of(Y), through_a_file(template_of(Y), tmp_path)):
        mean = template.wrap(torch.ones(3, 4), X=np.ones((3, 1)))
        expected = Y.drop_vars(["run", "scenario", "of_run_and_x"])  # these are of the runs of the fit
        xr.testing.assert_identical(mean, expected)
        assert mean.dtype == np.float32
        draws = template.wrap(torch.ones(5, 3, 4), X=np.ones((3, 1)), draws=True)
        xr.testing.assert_identical(draws[2], expected)
        assert draws.dims == ("draw", "run", "y", "x")


def test_standard_deviations_keep_units_and_densities_do_not():
    template = template_of(ocean())
    std = template.wrap(torch.ones(3, 4), X=None, quantity="std")
    assert std.name == "temperature_std"
    xr.testing.assert_identical(std.rename("temperature"), template.wrap(torch.ones(3, 4), X=None))
    density = template.wrap(torch.ones(3, 4), X=None, quantity="log_density")
    assert (density.name, density.attrs) == ("temperature_log_density", {})
    assert "lat" in density.coords
    unnamed = template_of(ocean().rename(None)).wrap(torch.ones(3, 4), X=None, quantity="std")
    assert unnamed.name is None


def test_what_the_inputs_say_of_their_rows_comes_with_predictions():
    X = xr.DataArray(
        np.ones((2, 3)),
        dims=("run", "input"),
        coords={"run": ["u", "v"], "scenario": ("run", [7, 8]), "lat": ("run", [1, 2]), "input": list("abc")},
    )
    mean = template_of(ocean()).wrap(torch.ones(2, 4), X)
    assert list(mean.run.values) == ["u", "v"]
    assert list(mean.scenario.values) == [7, 8]
    assert mean.lat.dims == ("y", "x")  # the outputs' own
    assert "input" not in mean.coords
    named = template_of(ocean()).wrap(torch.ones(2, 4), pd.DataFrame(np.ones((2, 3)), index=["u", "v"]))
    assert list(named.run.values) == ["u", "v"]


def test_a_multiindex_of_an_xarray_comes_back(tmp_path):
    Y = ocean().drop_vars(["lat", "basin", "of_run_and_x"]).stack(point=("y", "x"))
    for template in (template_of(Y), through_a_file(template_of(Y), tmp_path)):
        mean = template.wrap(torch.ones(3, 4), X=None)
        xr.testing.assert_identical(mean, Y.drop_vars(["run", "scenario"]))
        assert mean.unstack("point").sel(y=10.0, x=1).shape == (3,)
    rows = xr.DataArray(np.ones((2, 1)), dims=("run", "input"), coords={"a": ("run", [1, 1]), "b": ("run", [1, 2])})
    mean = template_of(ocean()).wrap(torch.ones(2, 4), rows.set_index(run=["a", "b"]))
    assert mean.sel(a=1, b=2).shape == (2, 2)


COLUMNS = {
    "strings": pd.Index(["a", "b"], name="metal"),
    "integers": pd.Index([3, 7]),
    "floats": pd.Index([0.5, np.nan]),
    "mixed": pd.Index(["a", 1], dtype=object),
    "with None": pd.Index(["a", None], dtype=object),
    "dates": pd.DatetimeIndex(["2026-01-01", "2026-02-01"], name="month"),
    "dates in a zone": pd.DatetimeIndex(["2026-01-01", "2026-07-01"], tz="Europe/Zurich"),
    "spans": pd.to_timedelta([1, 36], unit="h"),
    "plain dates": pd.Index([date(2026, 1, 1), date(2026, 2, 1)]),
    "levels": pd.MultiIndex.from_tuples([("Cd", 1), ("Ni", 2)], names=["metal", None]),
    "levels with dates": pd.MultiIndex.from_product([["Cd"], pd.DatetimeIndex(["2026-01-01", "2026-02-01"])]),
    "tuples": pd.Index([("a", 1), ("b",)], tupleize_cols=False),
    "categories": pd.CategoricalIndex(["a", "b"]),
}


@pytest.mark.parametrize("columns", COLUMNS)
def test_columns_of_every_kind_come_back_and_can_be_saved(columns, tmp_path):
    Y = pd.DataFrame(np.ones((3, 2)), columns=COLUMNS[columns])
    template = template_of(Y)
    pd.testing.assert_frame_equal(template.wrap(torch.ones(3, 2), X=frame()), Y)
    again = through_a_file(template, tmp_path)
    found = again.wrap(torch.ones(3, 2), X=frame(RUNS))
    if columns == "categories":  # saved as what they name
        Y.columns = Y.columns.astype(str)
    pd.testing.assert_index_equal(found.columns, Y.columns)
    assert list(found.index) == RUNS
    assert list(again.output_names()) == list(template.output_names())


def test_outputs_are_named_by_all_levels_of_their_columns():
    assert list(template_of(pd.DataFrame(np.ones((3, 2)), columns=COLUMNS["levels"])).output_names()) == [
        "Cd, 1",
        "Ni, 2",
    ]


NAMES = [
    None, "a", 3, 0.5, True, np.float64(2.5), ("a", (1, None)), date(2026, 1, 31), datetime(2026, 1, 31, 12),
    timedelta(hours=-3, microseconds=1), pd.Timestamp("2026-01-31 12:00:00.000000001"), pd.Timedelta("-1ns"),
    pd.Timestamp("2026-01-31", tz="UTC"), np.datetime64("2026-01-31", "h"), np.timedelta64(3, "s"),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_names_of_every_kind_come_back_from_a_file(name, tmp_path):
    template = template_of(pd.Series([1.0, 2.0], name=name))
    found = through_a_file(template, tmp_path).wrap(torch.ones(2, 1), X=None)
    assert found.name == name
    assert type(found.name) is (float if isinstance(name, np.float64) else type(name))


@pytest.mark.parametrize(
    "Y",
    [
        pd.Series([1.0], name=frozenset("a")),
        pd.DataFrame([[1.0]], columns=pd.period_range("2026", periods=1, freq="M")),
        xr.DataArray([[1.0]], dims=("run", "x"), coords={"x": np.array([frozenset("a")], dtype=object)}),
    ],
    ids=["name", "column", "coordinate"],
)
def test_labels_that_a_file_cannot_hold_are_refused(Y):
    with pytest.raises(ValueError, match="to be saved, labels must be strings, numbers, dates"):
        template_of(Y).describe()


def test_attributes_that_are_no_plain_values_are_left_out_of_a_file(tmp_path):
    Y = ocean().assign_attrs(code=print, nested={"$tensor": 0}, **{"$tensor": 1})
    template = template_of(Y)
    assert template.wrap(torch.ones(3, 4), X=None).attrs["code"] is print
    found = through_a_file(template, tmp_path).wrap(torch.ones(3, 4), X=None)
    assert set(found.attrs) == {"units", "valid_range", "history", "$tensor"}


def test_outputs_that_were_never_observed_come_back_as_nan(tmp_path):
    present = torch.tensor([0, 3])
    values = torch.tensor([[1.0, 2.0]])
    expected = np.array([[[1.0, np.nan], [np.nan, 2.0]]], dtype=np.float32)
    for Y in (ocean(), ocean().values, torch.from_numpy(ocean().values)):
        for template in (template_of(Y, present), through_a_file(template_of(Y, present), tmp_path)):
            np.testing.assert_array_equal(template.wrap(values, X=None), expected)
            np.testing.assert_array_equal(template.wrap(values[None], X=None, draws=True), expected[None])
            assert len(template.output_names()) == 4
    table = pd.DataFrame(np.ones((3, 4)), columns=list("abcd"))
    found = template_of(table, present).wrap(values.double(), X=None)
    assert list(found.columns) == list("abcd")
    np.testing.assert_array_equal(found, expected.reshape(1, 4))


@pytest.mark.parametrize("file", ["version_1", "version_1_kronecker"])
def test_templates_of_the_first_version_are_read(file):
    template = Template.rebuild(read_archive(GOLDEN / f"{file}.gprn", "regressor")["template"])
    assert (template.library, template.shape, template.dtype) == ("numpy", (6,), "float64")


def test_names_and_coordinates_of_the_first_version_are_read():
    times = torch.tensor([0, 86400 * 10**9])
    description = {"library": "xarray", "shape": [2, 2], "dtype": "float32", "names": ["run", "time", "x"]}
    description["coordinates"] = {
        "time": {"dtype": "datetime64[ns]", "values": times},
        "x": {"dtype": "object", "values": ["left", "right"]},
    }
    mean = Template.rebuild(description).wrap(torch.ones(1, 4), X=None)
    assert mean.sel(time="1970-01-02", x="left").shape == (1,)
    description |= {"library": "pandas", "shape": [2], "names": ["a", 1], "coordinates": {}}
    assert list(Template.rebuild(description).wrap(torch.ones(1, 2), X=None).columns) == ["a", 1]


@pytest.mark.parametrize("dtype", ["<U1000000", "no type"])
def test_a_file_cannot_ask_for_labels_larger_than_itself(dtype):
    for number in range(len(template_of(ocean()).labels)):
        description = template_of(ocean()).describe()
        description["labels"][number]["labels"]["dtype"] = dtype
        with pytest.raises(ValueError, match=f"labels in a file cannot have the type '{dtype}'"):
            Template.rebuild(description)
