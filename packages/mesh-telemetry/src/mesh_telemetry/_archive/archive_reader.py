"""Queries over the rows of a program that has ended, with the engine in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mesh_telemetry._errors import QueryError
from mesh_telemetry._query.engine import run_fragment
from mesh_telemetry._query.fragment import QUERY_FAULT, TOO_MUCH, FragmentReply
from mesh_telemetry._query.moments import microseconds
from mesh_telemetry._query.query import Query
from mesh_telemetry._rows.added_tables import added_tables, table_docs
from mesh_telemetry._rows.schemas import schema_of
from mesh_telemetry._tables.extended_rows import ExtendedRows
from mesh_telemetry._tables.host_tables import HostTables

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

    from mesh_telemetry._disk.stored_runs import StoredHost
    from mesh_telemetry._query.coverage import QueryResult
    from mesh_telemetry._query.fragment import Fragment

__all__ = ["ArchiveReader"]

_CONCURRENT_HOSTS_MAX = 4


class ArchiveReader:
    """Runs queries over the rows of stored hosts.

    Args:
        hosts: The hosts of one run.
    """

    def __init__(self, hosts: Sequence[StoredHost]) -> None:
        self._hosts = [
            (f"{host.metadata.name}/{host.metadata.number}", _tables(host)) for host in hosts
        ]

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the schemas of all tables, by name."""
        return {name: schema_of(doc) for name, doc in table_docs().items()}

    def query(
        self,
        sql: str,
        params: Sequence[object] | Mapping[str, object] | None,
        as_of: float | datetime | None,
        timeout_s: float,
    ) -> QueryResult:
        """Query the rows of all hosts; arguments and errors as of `Archive.query`."""
        query = Query(sql, params, self.tables())
        return query.run(self._run_fragment, until_us=microseconds(as_of), timeout_s=timeout_s)

    def _run_fragment(self, fragment: Fragment) -> Iterator[FragmentReply]:
        fragment = replace(fragment, added=added_tables(fragment.tables))
        with ThreadPoolExecutor(_CONCURRENT_HOSTS_MAX, "mesh-telemetry-archive") as pool:
            yield from pool.map(partial(_run_on_host, fragment), self._hosts)


def _tables(host: StoredHost) -> HostTables:
    return HostTables(
        # Rows that are not on disk belong to a running program, which must be queried instead.
        host.folder / "none",
        spill=host.folder,
        own_proc=host.metadata.own_proc,
        is_over=True,
    )


def _run_on_host(fragment: Fragment, named: tuple[str, HostTables]) -> FragmentReply:
    label, tables = named
    try:
        rows = ExtendedRows(tables, fragment.added)
        return FragmentReply(label, run_fragment(fragment, rows), None)
    except QueryError as error:
        is_marked = str(error).startswith((QUERY_FAULT, TOO_MUCH))
        return FragmentReply(label, None, f"{'' if is_marked else QUERY_FAULT}{error}")
    except Exception as error:
        return FragmentReply(label, None, f"{error}")
