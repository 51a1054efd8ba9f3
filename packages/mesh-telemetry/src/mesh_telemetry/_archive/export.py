"""Exports the rows of all hosts to one directory, in parts."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from mesh_telemetry._disk.stored_runs import HostMetadata, write_host_metadata
from mesh_telemetry._disk.stored_tables import StoredTables
from mesh_telemetry._errors import StorageError
from mesh_telemetry._events.program_line import program_line
from mesh_telemetry._plan.quoting import quoted
from mesh_telemetry._query.coverage import Coverage, HostFailure, QueryResult
from mesh_telemetry._rows.schemas import LIVE_TABLES, TABLES

__all__ = ["save"]

_ROWS_PER_QUERY_MAX = 200_000
_SAVED = "saved"

#: Runs a query as of a time in microseconds since the epoch, or as of now.
QueryFunction = Callable[[str, int | None], QueryResult]


def save(query: QueryFunction, folder: Path) -> Coverage:
    """Write all tables to a directory as a separate run; return the hosts that replied.

    Raises:
        StorageError: The directory cannot be written to.
    """
    run = folder / f"{os.getpid()}-{os.urandom(8).hex()}"
    host = run / _SAVED
    try:
        try:
            return _save_tables(query, host)
        except BaseException:
            shutil.rmtree(run, ignore_errors=True)
            raise
    except OSError as error:
        raise StorageError(
            f"cannot use {str(folder)!r} ({error.strerror}): choose another folder"
        ) from error


def _save_tables(query: QueryFunction, host: Path) -> Coverage:
    now_us = time.time_ns() // 1000
    stored = StoredTables(host)
    coverages: list[Coverage] = []
    for table in TABLES:
        for result in _row_ranges(query, table, now_us):
            coverages.append(result.coverage)
            if result.table.num_rows and result.table.schema.names == TABLES[table].names:
                stored.write(table, result.table.cast(TABLES[table]), ())
    # The metadata makes the run visible to readers.
    metadata = HostMetadata(0, _SAVED, program_line(), now_us, 0, "", time.time_ns() // 1000)
    write_host_metadata(host, metadata)
    return _merged_coverage(coverages)


def _row_ranges(query: QueryFunction, table: str, now_us: int) -> Iterator[QueryResult]:
    """Query the rows of a table in parts that fit into memory."""
    name = quoted(table)
    if table in LIVE_TABLES:
        yield query(f"select * from {name}", None)
        return
    ranges = [(-(1 << 62), now_us)]
    while ranges:
        first, last = ranges.pop()
        between = f"where timestamp_us >= {first} and timestamp_us <= {last}"
        counted = query(
            f"select count(*) as n, min(timestamp_us) as a, max(timestamp_us) as b"
            f" from {name} {between}",
            now_us,
        )
        yield counted
        (found,) = counted.table.to_pylist()
        if not found["n"]:
            continue
        first, last = found["a"], found["b"]
        if found["n"] <= _ROWS_PER_QUERY_MAX or first == last:
            yield query(
                f"select * from {name} where timestamp_us >= {first} and timestamp_us <= {last}",
                now_us,
            )
        else:
            middle = (first + last) // 2
            ranges += [(middle + 1, last), (first, middle)]


def _merged_coverage(coverages: list[Coverage]) -> Coverage:
    """Merge several coverages; a host that failed in one of them has failed."""
    failed: dict[str, HostFailure] = {}
    queried: set[str] = set()
    for coverage in coverages:
        queried |= set(coverage.queried)
        for failure in coverage.failed:
            failed.setdefault(failure.host, failure)
    merged = Coverage(
        tuple(sorted(queried)), (), tuple(failed[host] for host in sorted(failed)), ()
    )
    return replace(merged, replied=tuple(sorted(queried - failed.keys())))
