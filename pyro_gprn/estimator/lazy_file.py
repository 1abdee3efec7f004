"""Outputs that are not in memory, in a file: where they lie and what tells that they are the same, but none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Size, Tensor

from pyro_gprn.archive import ArchiveError
from pyro_gprn.collapsed.conditioned import ConditionedDraws, WhiteCoordinates
from pyro_gprn.estimator.containers import is_lazy, read_lazy_outputs, read_outputs
from pyro_gprn.estimator.fitted import FittedNetwork
from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.outputs.extra import load
from pyro_gprn.outputs.gram import GroupedStatistics, OutputStatistics
from pyro_gprn.outputs.lazy import DaskOutputs, UnreadableChunkError
from pyro_gprn.outputs.one_pass import BlockStandard, OutputsByBlock, standardize_lazily
from pyro_gprn.outputs.patterns import PatternsByReading
from pyro_gprn.outputs.store import StoreError, find_store, open_store

#: How outputs may be scaled, as files name it.
_KINDS = ("field", "outputs", None)


def describe_lazy(fitted: FittedNetwork) -> dict[str, Any]:
    """What a file has of the outputs of a lazy fit: where they lie, what identifies them, and their Gram matrices.

    Where nearly every output has holes of its own, statistics hold outputs themselves: they are made again by a pass.
    """
    outputs, source, known = _lazy(fitted.outputs), _by_block(fitted.known.source), fitted.known
    conditioned = fitted.conditioned()
    is_grouped = isinstance(known, GroupedStatistics)
    identity, reference = outputs.identify(), find_store(outputs.array)
    if reference is not None and not _is_in(reference, identity):  # Y was computed from what is stored there
        reference = None
    return {
        "identity": identity,
        "reference": reference,
        "standard": {"kind": source.standard.kind, "centre": source.standard.centre},
        "statistics": {name: getattr(known, name) for name in ("observed", "counts", "grams")} if is_grouped else None,
        "coordinates": conditioned.coordinates._asdict() if isinstance(conditioned, ConditionedDraws) else None,
    }


def rebuild_lazy(
    tree: dict[str, Any],
    Y: Any,
    scaling: Scaling,
    present: Tensor | None,
    output_shape: tuple[int, ...],
    path: str | Path,
) -> tuple[OutputStatistics, DaskOutputs, WhiteCoordinates | None]:
    """Statistics, source and coordinates of the outputs that :func:`describe_lazy` described.

    :param Y: the outputs, if they are not to be read from the store that the file names.
    :raises ArchiveError: if the store is gone or has changed, or Y is another one.
    """
    array = _open(tree["reference"], path) if Y is None else _as_dask(Y)
    outputs = DaskOutputs(array[:, None] if array.ndim == 1 else array)
    try:
        is_same = outputs.is_identified_by(tree["identity"])
    except UnreadableChunkError as error:
        raise ArchiveError(f"the outputs that {path} was fitted to cannot be read: {error}") from error
    if not is_same:
        what = "Y is not what" if Y is not None else f"what is stored in {tree['reference']['store']} is not what"
        raise ArchiveError(f"{what} the estimator in {path} was fitted to: its values, shape or type differ")
    outputs = outputs.reshape(Size(output_shape))
    kind, saved = tree["standard"]["kind"], tree["statistics"]
    if kind not in _KINDS:
        raise ValueError(f"its outputs are scaled by {kind!r}")
    standard = BlockStandard(kind, bool(tree["standard"]["centre"]), scaling.y_scale)
    source = OutputsByBlock(outputs, standard, present)
    if saved is None:
        return standardize_lazily(outputs, kind, centre=standard.centre).statistics, outputs, None
    observed = saved["observed"].bool()
    patterns = PatternsByReading(source, observed) if len(observed) > 1 else None
    known = GroupedStatistics(source, observed, saved["counts"], patterns, saved["grams"])
    return known, outputs, WhiteCoordinates(**tree["coordinates"])


def _open(reference: dict[str, str] | None, path: str | Path) -> Any:
    if reference is None:
        raise ArchiveError(
            f"{path} was fitted to a dask array that is not simply an array in a zarr store on this machine: pass the"
            " same Y, load(path, Y=Y)"
        )
    try:
        return read_lazy_outputs(open_store(reference))
    except StoreError as error:
        where = f"{path} has its training outputs elsewhere"
        raise ArchiveError(f"{where}, but {error}: pass the same Y, load(path, Y=Y)") from error


def _as_dask(Y: Any) -> Any:
    return read_lazy_outputs(Y) if is_lazy(Y) else load("dask.array").from_array(read_outputs(Y).numpy())


def _is_in(reference: dict[str, str], identity: dict[str, Any]) -> bool:
    """True if the store has the identified outputs themselves."""
    try:
        array = read_lazy_outputs(open_store(reference))
        return DaskOutputs(array[:, None] if array.ndim == 1 else array).is_identified_by(identity)
    except (StoreError, OSError, ValueError):
        return False


def _lazy(source: Any) -> DaskOutputs:
    return source


def _by_block(source: Any) -> OutputsByBlock:
    return source
