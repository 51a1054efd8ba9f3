"""The limits of one query."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QueryLimits"]


@dataclass(frozen=True)
class QueryLimits:
    """The limits of one query, and the thresholds for shipping keys of joins first.

    Attributes:
        rows_max: Rows of each host and statement.
        host_memory_max_bytes: Memory on each host, in addition to its tables.
        memory_max_bytes: Memory in the process that finishes the query.
        keys_max: Keys of one side of a join that may be put into the filter of the other side.
        reduced_rows_min: The other side of a join is filtered if it has at least this number of
            rows.
        result_bytes_max: The maximum size of a result; if None, the memory limits apply. In a
            stream, it applies to the data of each host.
    """

    rows_max: int = 1_000_000
    host_memory_max_bytes: int = 512 << 20
    memory_max_bytes: int = 1 << 30
    keys_max: int = 10_000
    reduced_rows_min: int = 1_000
    result_bytes_max: int | None = None
