"""Labels, coordinates and attributes as a file can hold them, and back.

A file holds dicts, lists, tensors, numbers, strings, booleans and None (see :mod:`~pyro_gprn.archive`). Dates, time
spans and tuples are written as a dict with one entry, whose key says what the value was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import torch

_MICROSECOND = timedelta(microseconds=1)


def describe_label(label: Any) -> Any:
    """One label, as a file can hold it: None, a number, a string, a date, a time span, or a tuple of these.

    >>> describe_label(("Cd", date(2026, 1, 31)))
    {'tuple': ['Cd', {'date': '2026-01-31'}]}
    """
    if isinstance(label, (np.datetime64, np.timedelta64)):
        return {label.dtype.str: int(label.astype(np.int64))}
    if isinstance(label, np.generic):
        label = label.item()
    if label is None or isinstance(label, (bool, int, float, str)):
        return label
    if isinstance(label, tuple):
        return {"tuple": [describe_label(part) for part in label]}
    kind = type(label).__name__
    if kind in ("Timestamp", "NaTType"):
        return {"Timestamp": label.isoformat()}
    if kind in ("Timedelta", "datetime", "date"):
        return {kind: label.isoformat()}
    if isinstance(label, timedelta):
        return {"timedelta": label // _MICROSECOND}
    raise ValueError(
        f"to be saved, labels must be strings, numbers, dates, time spans, None or tuples of these; got {label!r} of"
        f" type {kind}"
    )


def rebuild_label(description: Any) -> Any:
    """The label that :func:`describe_label` described.

    >>> rebuild_label({"tuple": ["Cd", {"date": "2026-01-31"}]})
    ('Cd', datetime.date(2026, 1, 31))
    """
    if not isinstance(description, dict):
        return description
    ((kind, value),) = description.items()
    if kind in ("Timestamp", "Timedelta"):
        import pandas as pd

        return getattr(pd, kind)(value)
    makers: dict[str, Callable[[Any], Any]] = {
        "tuple": lambda parts: tuple(rebuild_label(part) for part in parts),
        "datetime": datetime.fromisoformat,
        "date": date.fromisoformat,
        "timedelta": lambda microseconds: microseconds * _MICROSECOND,
    }
    return makers[kind](value) if kind in makers else np.array(value).astype(_dtype(kind, "mM"))[()]


def describe_array(values: np.ndarray) -> dict[str, Any]:
    """An array of labels, of any shape, as a file can hold it."""
    kind = values.dtype.kind
    if kind in "biumM":
        return {"dtype": values.dtype.str, "values": torch.from_numpy(values.astype(np.int64))}
    if kind == "f":
        return {"dtype": values.dtype.str, "values": torch.from_numpy(values.astype(np.float64))}
    labels = [describe_label(label) for label in values.ravel().tolist()]
    return {"dtype": "str" if kind == "U" else "object", "values": labels, "shape": list(values.shape)}


def rebuild_array(description: Mapping[str, Any]) -> np.ndarray:
    """The array that :func:`describe_array` described.

    >>> rebuild_array(describe_array(np.array(["2026-01-31"], dtype="datetime64[D]")))
    array(['2026-01-31'], dtype='datetime64[D]')
    """
    values = description["values"]
    if isinstance(values, torch.Tensor):
        return values.numpy().astype(_dtype(description["dtype"], "biufmM"))
    array = np.empty(len(values), dtype=object)  # filled one by one: a tuple is one label
    for place, label in enumerate(values):
        array[place] = rebuild_label(label)
    return array.reshape(description.get("shape", -1)).astype(_dtype(description["dtype"], "UO"))


def _dtype(name: str, kinds: str) -> np.dtype:
    """The type that a file names; raises an error if it would take more memory than its labels need."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in kinds or dtype.itemsize > 16:
        raise ValueError(f"labels in a file cannot have the type {name!r}")
    return dtype


def describe_index(index: Any) -> dict[str, Any]:
    """A pandas index, as a file can hold it: its labels, level by level, and the names of its levels.

    Of categories, the labels that they stand for are kept.
    """
    if index.nlevels > 1:
        return {"levels": [describe_index(index.get_level_values(level)) for level in range(index.nlevels)]}
    description: dict[str, Any] = {"name": describe_label(index.name), "is_object": bool(index.dtype == object)}
    zone = getattr(index, "tz", None)
    if zone is not None:
        description["zone"], index = str(zone), index.tz_convert(None)  # times without a zone are UTC's
    return description | describe_array(index.to_numpy())


def rebuild_index(description: Mapping[str, Any]) -> Any:
    """The pandas index that :func:`describe_index` described.

    >>> import pandas
    >>> list(rebuild_index(describe_index(pandas.Index(["a", "b"]))))
    ['a', 'b']
    """
    import pandas as pd

    if "levels" in description:
        levels = [rebuild_index(level) for level in description["levels"]]
        return pd.MultiIndex.from_arrays(levels, names=[level.name for level in levels])
    kind = object if description["is_object"] else None  # None lets pandas see strings for what they are
    name = rebuild_label(description["name"])
    index = pd.Index(rebuild_array(description), dtype=kind, name=name, tupleize_cols=False)
    return index.tz_localize("UTC").tz_convert(description["zone"]) if "zone" in description else index


def describe_attributes(attributes: Mapping[Any, Any]) -> list[list[Any]]:
    """Attributes as pairs of name and value; those whose value is not plain are left out.

    Plain values are those that :func:`describe_label` takes, lists of these, and arrays of numbers, strings or dates.

    >>> describe_attributes({"units": "K", "source": object(), "levels": [1, 2]})
    [['units', 'K'], ['levels', {'list': [1, 2]}]]
    """
    described = []
    for name, value in attributes.items():
        try:
            described.append([describe_label(name), _describe_value(value)])
        except ValueError:
            continue
    return described


def rebuild_attributes(description: list[list[Any]]) -> dict[Any, Any]:
    """The attributes that :func:`describe_attributes` described.

    >>> rebuild_attributes([["units", "K"], ["levels", {"list": [1, 2]}]])
    {'units': 'K', 'levels': [1, 2]}
    """
    return {rebuild_label(name): _rebuild_value(value) for name, value in description}


def _describe_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"array": describe_array(value)}
    return {"list": [describe_label(part) for part in value]} if isinstance(value, list) else describe_label(value)


def _rebuild_value(description: Any) -> Any:
    if isinstance(description, dict) and "array" in description:
        return rebuild_array(description["array"])
    if isinstance(description, dict) and "list" in description:
        return [rebuild_label(part) for part in description["list"]]
    return rebuild_label(description)
