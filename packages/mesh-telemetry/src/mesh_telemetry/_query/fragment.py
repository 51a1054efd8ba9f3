"""The part of a query that a host runs, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from mesh_telemetry._rows.added_tables import AddedTable

__all__ = ["QUERY_FAULT", "TOO_MUCH", "Fragment", "FragmentReply", "QueriedHost"]

# Prefixes of a host's error if the query is at fault and not the host.
QUERY_FAULT = "the query fails on its rows: "
TOO_MUCH = "the query wants too much of a host: "


@dataclass(frozen=True)
class Fragment:
    """One statement for every host, and its limits.

    Attributes:
        sql: The statement, which only reads.
        tables: The tables in it.
        until_us: Ignore rows of a later time, in microseconds since the epoch; None for all rows.
        rows_max: The maximum number of rows to send; if there are more, the host returns an error.
        memory_max_bytes: Memory that the host may use in addition to the tables.
        deadline_s: The time that the host may take, in seconds.
        added: Those of the tables that were added by packages.
        values: The values of the parameters in it.
        result_bytes_max: The maximum size of the result; None for `memory_max_bytes`.
    """

    sql: str
    tables: tuple[str, ...]
    until_us: int | None
    rows_max: int
    memory_max_bytes: int
    deadline_s: float
    added: tuple[AddedTable, ...] = ()
    values: Mapping[str, pa.Scalar] = field(default_factory=dict)
    result_bytes_max: int | None = None


@dataclass(frozen=True)
class QueriedHost:
    """A host that received a fragment; its reply comes later, or never.

    Attributes:
        host: The host's name.
    """

    host: str


@dataclass(frozen=True)
class FragmentReply:
    """The result of a fragment on one host.

    Attributes:
        host: The host's name.
        body: An Arrow IPC stream; None if the fragment failed.
        error: The cause of the failure as text; None if it succeeded.
    """

    host: str
    body: bytes | None
    error: str | None
