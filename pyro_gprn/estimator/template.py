"""Predictions in the kind, type and shape of the outputs that came, with their names, coordinates and attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.estimator.kinds import library_of
from pyro_gprn.estimator.labels import (
    describe_array,
    describe_attributes,
    describe_index,
    describe_label,
    rebuild_array,
    rebuild_attributes,
    rebuild_index,
    rebuild_label,
)

#: What predictions are: values of the outputs (means, draws), their standard deviations, or log densities.
Quantity = Literal["value", "std", "log_density"]


class Coordinate(NamedTuple):
    """A coordinate of an xarray, as xarray takes it."""

    dims: tuple[Any, ...]  #: the dimensions that it runs over; none for a single number
    values: np.ndarray
    attributes: dict[Any, Any]


@dataclass(frozen=True)
class Template:
    """The kind, type, shape and names of the training outputs, which predictions have too.

    :param library: the library of the array: ``"numpy"``, ``"torch"``, ``"pandas"``, ``"xarray"`` or ``"dask"``.
    :param shape: the shape of one row as it came; ``()`` if Y was a vector.
    :param dtype: the type of the predictions, as NumPy writes it.
    :param names: for pandas the columns, or the one name of a series; for xarray the dimensions, the rows' first.
    :param labels: for xarray, by name, each :class:`Coordinate` that does not run over the rows: labels along a
        dimension, latitudes of a curved grid, a single height.
    :param name: for xarray, the array's name.
    :param attributes: for xarray, the array's attributes, such as its units.
    :param levels: for xarray, the dimensions whose labels are a MultiIndex, each with the names of its levels.
    :param present: positions among the flattened outputs of those that are predicted, ``(D_present,)``; the others,
        missing in every run, come back as NaN. None means that all are predicted.

    >>> Y = np.ones((5, 2, 2), dtype=np.float32)
    >>> template = Template.of(Y, torch.from_numpy(Y), present=torch.tensor([0, 3]))
    >>> template.wrap(torch.tensor([[1.5, 2.5]]), X=[[0.0]])
    array([[[1.5, nan],
            [nan, 2.5]]], dtype=float32)
    """

    library: str
    shape: tuple[int, ...]
    dtype: str
    names: Sequence[Any] = ()
    labels: Mapping[Any, Any] = field(default_factory=dict)
    name: Any = None
    attributes: Mapping[Any, Any] = field(default_factory=dict)
    levels: Mapping[Any, list[Any]] = field(default_factory=dict)
    present: Tensor | None = None

    @classmethod
    def of(cls, Y: Any, outputs: Any, present: Tensor | None = None) -> Template:
        """The template of some outputs.

        :param Y: the outputs as they came.
        :param outputs: ``Y`` as :func:`~pyro_gprn.estimator.containers.read_outputs` or ``read_lazy_outputs`` reads it.
        :param present: positions of the outputs that are predicted, or None for all.
        """
        library = library_of(Y)
        shape, dtype = tuple(outputs.shape[1:]), str(outputs.dtype).removeprefix("torch.")
        if library == "pandas":
            return cls(library, shape, dtype, [Y.name] if Y.ndim == 1 else Y.columns, present=present)
        if library == "xarray":
            levels = _levels(Y)
            labels = {
                name: Coordinate(each.dims, np.asarray(each.values), dict(each.attrs))
                for name, each in Y.coords.items()
                if Y.dims[0] not in each.dims and name not in levels
            }
            return cls(library, shape, dtype, list(Y.dims), labels, Y.name, dict(Y.attrs), levels, present)
        if library == "zarr":
            library = "dask"  # which zarr is read and written by
        return cls(library, shape, dtype, present=present)

    @property
    def coordinates(self) -> dict[Any, np.ndarray]:
        """For xarray, the labels along each of the outputs' dimensions that has any."""
        return {name: each.values for name, each in self.labels.items() if each.dims == (name,)}

    def output_names(self) -> np.ndarray:
        """A name for each of the flattened outputs, ``(D,)``: its column, or else its position."""
        if self.library == "pandas" and self.shape != ():
            return np.array(
                [", ".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in self.names]
            )
        return np.array([", ".join(map(str, place)) or "0" for place in np.ndindex(*self.shape)])

    def wrap(self, values: Tensor, X: Any, draws: bool = False, quantity: Quantity = "value") -> Any:
        """Predictions in the kind and shape of the outputs.

        An xarray of values has the name and the attributes of the outputs; one of standard deviations has the same
        attributes (so the same units) and a name that ends in ``_std``; one of log densities has no attributes and
        a name that ends in ``_log_density``. Draws of a pandas table are a NumPy array, since they have three axes.

        :param values: ``(N*, D_present)``, or ``(n, N*, D_present)`` of draws.
        :param X: the new inputs as they came: for pandas and xarray their labels become the rows'.
        :param draws: whether the first axis is that of draws, ``"draw"`` in an xarray.
        :param quantity: what the values are.
        """
        values = self._complete(values.to(getattr(torch, self.dtype)))
        values = values.reshape(*values.shape[:-1], *self.shape)
        if self.library == "torch":
            return values
        array = values.cpu().numpy()
        if self.library == "pandas" and not draws:
            return self._pandas(array, X)
        if self.library == "xarray":
            return self._xarray(array, X, draws, quantity)
        return array

    def wrap_lazy(self, array: Any, X: Any, draws: bool = False, quantity: Quantity = "value") -> Any:
        """Predictions that are a dask array ``(N*, …)`` or ``(n, N*, …)`` of all outputs, as :meth:`wrap` would."""
        array = array.reshape(*array.shape[: 2 if draws else 1], *self.shape)
        return self._xarray(array, X, draws, quantity) if self.library == "xarray" else array

    def _complete(self, values: Tensor) -> Tensor:
        """All outputs ``(…, D)``, with NaN for those that are not predicted."""
        if self.present is None:
            return values
        everything = values.new_full((*values.shape[:-1], int(np.prod(self.shape))), torch.nan)
        everything[..., self.present.to(values.device)] = values
        return everything

    def _pandas(self, array: np.ndarray, X: Any) -> Any:
        import pandas as pd

        index = X.index if library_of(X) == "pandas" else None
        if self.shape == ():
            return pd.Series(array, index=index, name=self.names[0])
        return pd.DataFrame(array, index=index, columns=self.names)

    def _xarray(self, array: Any, X: Any, draws: bool, quantity: Quantity) -> Any:
        import xarray as xr

        name = self.name if self.name is None or quantity == "value" else f"{self.name}_{quantity}"
        attributes = {} if quantity == "log_density" else self.attributes
        dims = ["draw", *self.names] if draws else self.names
        wrapped = xr.DataArray(array, dims=dims, coords=self.labels, name=name, attrs=attributes)
        return wrapped.set_index(self.levels).assign_coords(self._row_coordinates(X))

    def _row_coordinates(self, X: Any) -> Any:
        """Those coordinates of the new inputs that run over their rows and over nothing else."""
        rows = self.names[0]
        if library_of(X) == "pandas":
            return {rows: X.index.to_numpy()}
        if library_of(X) != "xarray" or X.dims[0] != rows:
            return {}
        taken = {*self.names[1:], *self.labels}
        return X.drop_vars([name for name, each in X.coords.items() if each.dims != (rows,) or name in taken]).coords

    def describe(self) -> dict[str, Any]:
        """The template as a file can hold it, for :meth:`rebuild`.

        Names and labels may be strings, numbers, dates, time spans, None and tuples of these; others raise an error.
        Attributes that are no such values, nor lists or arrays of them, are left out.

        >>> Template.rebuild(Template("numpy", (3,), "float64").describe())
        Template(library='numpy', shape=(3,), dtype='float64', ...)
        """
        description: dict[str, Any] = {"library": self.library, "shape": list(self.shape), "dtype": self.dtype}
        if hasattr(self.names, "nlevels"):  # a pandas index
            description["columns"] = describe_index(self.names)
        else:
            description["names"] = [describe_label(name) for name in self.names]
        description["labels"] = [
            {
                "name": describe_label(name),
                "dims": [describe_label(each) for each in dims],
                "labels": describe_array(values),
                "attributes": describe_attributes(attributes),
            }
            for name, (dims, values, attributes) in self.labels.items()
        ]
        description["name"] = describe_label(self.name)
        description["attributes"] = describe_attributes(self.attributes)
        description["levels"] = [
            [describe_label(name), *map(describe_label, levels)] for name, levels in self.levels.items()
        ]
        description["present"] = self.present
        return description

    @classmethod
    def rebuild(cls, description: Mapping[str, Any]) -> Template:
        """The template that :meth:`describe` described, also in a file of the first version, without attributes."""
        library, dtype = description["library"], description["dtype"]
        if library not in ("numpy", "torch", "pandas", "xarray", "dask") or dtype not in ("float32", "float64"):
            raise ValueError(f"its outputs are of library {library!r} and type {dtype!r}, which are not known")
        if "columns" in description:
            names = rebuild_index(description["columns"])
        else:
            names = [rebuild_label(name) for name in description["names"]]
        labels = {
            rebuild_label(each["name"]): Coordinate(
                tuple(rebuild_label(name) for name in each["dims"]),
                rebuild_array(each["labels"]),
                rebuild_attributes(each["attributes"]),
            )
            for each in description.get("labels", [])
        }
        for name, values in description.get("coordinates", {}).items():  # of the first version
            labels[name] = Coordinate((name,), rebuild_array(values), {})
        levels = ([rebuild_label(name) for name in each] for each in description.get("levels", []))
        return cls(
            library,
            tuple(description["shape"]),
            dtype,
            names,
            labels,
            rebuild_label(description.get("name")),
            rebuild_attributes(description.get("attributes", [])),
            {name: rest for name, *rest in levels},
            description.get("present"),
        )


def _levels(Y: Any) -> dict[Any, list[Any]]:
    """The dimensions of the outputs whose labels are a MultiIndex, with the names of its levels."""
    indexes = {name: Y.get_index(name) for name in Y.dims[1:]}
    return {name: list(index.names) for name, index in indexes.items() if index.nlevels > 1}
