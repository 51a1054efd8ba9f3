"""The rows of the heap snapshots in the folder of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_telemetry._rows.columns import batch_of
from mesh_telemetry._rows.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import pyarrow as pa

__all__ = ["HEAP_TABLES", "heap_rows"]

HEAP_TABLES = ("heap",)


def heap_rows(found: Sequence[Sequence[Any]], origin: Mapping[str, Any]) -> pa.RecordBatch:
    """Return the rows of a snapshot.

    Args:
        found: Function, file, line, bytes and allocations of each call.
        origin: The columns that are equal in all rows.
    """
    names = ("function", "file", "line", "bytes", "allocations")
    columns = {name: [call[at] for call in found] for at, name in enumerate(names)}
    return batch_of(TABLES["heap"], {**columns, **origin}, len(found))
