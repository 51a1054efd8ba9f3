"""What one query may take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QueryLimits"]


@dataclass(frozen=True)
class QueryLimits:
    """What one query may take, and when it pays to ask twice.

    Attributes:
        rows_max: So many rows of each host and statement.
        host_memory_max_bytes: So much of each host, besides its tables.
        memory_max_bytes: So much here.
        keys_max: So many keys of one side of a join go into the filter of the other.
        reduced_rows_min: The other side is filtered so only if it has as many rows.
        answer_bytes_max: The largest answer; None for what fits into memory. Of rows that are
            streamed, what each host sends.
    """

    rows_max: int = 1_000_000
    host_memory_max_bytes: int = 512 << 20
    memory_max_bytes: int = 1 << 30
    keys_max: int = 10_000
    reduced_rows_min: int = 1_000
    answer_bytes_max: int | None = None
