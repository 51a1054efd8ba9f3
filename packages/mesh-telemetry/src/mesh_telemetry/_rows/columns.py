"""Numbers and columns that several tables share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    Numbers = NDArray[np.uint64]

__all__ = ["NO_NUMBER", "batch_of", "call_ids", "constant", "mixed", "proc_names", "texts"]

NO_NUMBER = np.uint64(0)
# The steps of SplitMix64, which distributes every bit of a number over all of its bits.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(*parts: NDArray[Any] | np.integer[Any] | int) -> Numbers:
    """Hash several numbers to one, deterministically; element by element for arrays."""
    columns = np.broadcast_arrays(*(np.asarray(part, dtype=np.uint64) for part in parts))
    made = np.zeros(columns[0].shape, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            made = made + column + _GAMMA
            made = (made ^ (made >> np.uint64(30))) * _FIRST
            made = (made ^ (made >> np.uint64(27))) * _SECOND
            made ^= made >> np.uint64(31)
    return made


def call_ids(calls: Numbers, callee: NDArray[Any] | int, ports: Numbers) -> Numbers:
    """Return the ids of messages by the port of their replies, which both sides know."""
    return mixed(calls, callee, ports)


def proc_names(procs: Numbers) -> pa.Array:
    """Format processes as `host.slot`."""
    known, places = np.unique(procs, return_inverse=True)
    names = pa.array(
        [f"{int(proc) >> 32}.{int(proc) & 0xFFFF_FFFF}" for proc in known], pa.string()
    )
    return names.take(pa.array(places.reshape(-1)))


def constant(value: object, kind: pa.DataType, length: int) -> pa.Array:
    """Return a column with the same value in all rows."""
    return pa.repeat(pa.scalar(value, kind), length)


def texts(values: Sequence[Any]) -> pa.Array:
    """Return a column of texts; invalid Unicode is replaced."""
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        clean = [
            None if value is None else str(value).encode("utf-8", "replace").decode()
            for value in values
        ]
        return pa.array(clean, pa.string())


def batch_of(schema: pa.Schema, columns: dict[str, Any], length: int) -> pa.RecordBatch:
    """Build a batch from columns, which may be arrays, lists, or one value for all rows."""
    arrays = []
    for field in schema:
        column = columns[field.name]
        if isinstance(column, pa.Array):
            made = column
        elif isinstance(column, np.ndarray):
            made = pa.array(column)
        elif isinstance(column, list):
            is_text = pa.types.is_string(field.type)
            made = texts(column) if is_text else pa.array(column, field.type)
        else:
            made = constant(column, field.type, length)
        arrays.append(made if made.type == field.type else made.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
