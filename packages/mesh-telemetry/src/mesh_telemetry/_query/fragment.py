"""The part of a query that a host answers, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from mesh_telemetry._rows.added_tables import AddedTable

__all__ = ["QUERY_FAULT", "TOO_MUCH", "Asked", "Fragment", "ShardAnswer"]

# How a host's error begins when the query is to blame, and not the host.
QUERY_FAULT = "the query fails on its rows: "
TOO_MUCH = "the query wants too much of a host: "


@dataclass(frozen=True)
class Fragment:
    """One statement for every host, and its limits.

    Attributes:
        sql: What the host runs over its own rows; it only reads.
        tables: The tables in it.
        until_us: Rows of a later time do not exist for it, in microseconds since the epoch; None
            for all rows.
        rows_max: More rows than this are not sent; the host refuses.
        memory_max_bytes: What the host may hold for it besides the tables themselves.
        deadline_s: How long the host may take, in seconds.
        added: Those of the tables that packages have added.
        values: Those of the parameters in it.
        answer_bytes_max: The most bytes that are sent; None for `memory_max_bytes`.
    """

    sql: str
    tables: tuple[str, ...]
    until_us: int | None
    rows_max: int
    memory_max_bytes: int
    deadline_s: float
    added: tuple[AddedTable, ...] = ()
    values: Mapping[str, pa.Scalar] = field(default_factory=dict)
    answer_bytes_max: int | None = None


@dataclass(frozen=True)
class Asked:
    """A host that was asked: its answer comes later, or never.

    Attributes:
        host: The host's name.
    """

    host: str


@dataclass(frozen=True)
class ShardAnswer:
    """What one host sent back for a fragment.

    Attributes:
        host: The host's name.
        body: An Arrow IPC stream; None if it failed.
        error: Why it failed, as text; None if it did not.
    """

    host: str
    body: bytes | None
    error: str | None
