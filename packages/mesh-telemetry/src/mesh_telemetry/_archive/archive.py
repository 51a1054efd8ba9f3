"""Rows of programs that have ended, which are queried like a running program."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_telemetry._disk.stored_runs import Run, StoredHost, hosts_of, runs_in
from mesh_telemetry._errors import QueryError, StorageError
from mesh_telemetry._events.folders import remove_if_free
from mesh_telemetry._query.moments import microseconds

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from mesh_telemetry._query.coverage import Answer
    from mesh_telemetry._query.fragment import Fragment, ShardAnswer
    from mesh_telemetry._tables.host_tables import HostTables

__all__ = ["Archive"]

_HOSTS_AT_ONCE = 4

Folders = str | Path | Sequence[str | Path]


class Archive:
    """The rows of one run, read from directories; a context manager. No program needs to run.

    The rows were written by `TelemetryConfig.spill` or `Telemetry.save`. Rows that a killed program
    has left in the memory of this machine are moved to the directory first.

    Args:
        folder: The directory with the rows; several if the hosts do not share one.
        run: The name of a run, from `Archive.runs`; the last run if omitted.

    Raises:
        StorageError: The directory does not exist, or has no such run.

    Example:
        >>> with Archive("/shared/telemetry") as past:
        ...     past.query("select kind, reason from failures order by timestamp_us").table
    """

    def __init__(self, folder: Folders, run: str | None = None) -> None:
        found = _hosts(folder)
        if run is None:
            run = _runs(folder)[-1].name if found else None
        if run is None or run not in found:
            known = ", ".join(found) or "none at all"
            wanted = "no rows" if run is None else f"no run {run!r}"
            raise StorageError(f"{wanted} in {_text(folder)}: the runs are {known}")
        self.run: str = run
        self._hosts = _opened(found[run])

    @staticmethod
    def runs(folder: Folders) -> list[Run]:
        """Return the runs in one or several directories, oldest first.

        Raises:
            StorageError: A directory does not exist.
        """
        return _runs(folder)

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the schemas of all tables, by name."""
        from mesh_telemetry._rows.added_tables import table_docs
        from mesh_telemetry._rows.schemas import schema_of

        return {name: schema_of(doc) for name, doc in table_docs().items()}

    def query(
        self,
        sql: str,
        params: Sequence[object] | Mapping[str, object] | None = None,
        *,
        as_of: float | datetime | None = None,
        timeout: float = 60.0,
    ) -> Answer:
        """Query the rows of all hosts of the run with SQL.

        Live tables contain their last snapshot if `TelemetryConfig.snapshot_s` was set.

        Args:
            sql: One `select` over the tables that `tables` lists.
            params: The values of `$1`, `$2` and so on as a sequence, or of `$name` as a mapping.
            as_of: Return the rows as they were at this time: seconds since the epoch, or a
                `datetime` with a time zone.
            timeout: Seconds after which hosts that have not been read are left out.

        Returns:
            The rows as `table`, and the hosts that were read as `coverage`.

        Raises:
            QueryError: The query is invalid.
            CoverageError: No host can be read.
            TelemetryError: The run is closed.
            ValueError: `as_of` has no time zone, or `timeout` is not positive.
        """
        # Imported here because processes that only record must not load Arrow.
        from mesh_telemetry._query.query import Query

        if not timeout > 0:
            raise ValueError(f"timeout {timeout} is not positive")
        if not self._hosts:
            raise StorageError("the recording is closed: open the folder again")
        return Query(sql, params, self.tables()).answer(
            partial(_ask, self._hosts), until_us=microseconds(as_of), timeout_s=timeout
        )

    def close(self) -> None:
        """Release what was read; later calls do nothing."""
        self._hosts = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _hosts(folder: Folders) -> dict[str, list[StoredHost]]:
    folders = _folders(folder)
    try:
        found = hosts_of(folders)
        for hosts in found.values():
            for host in hosts:
                _take_along(host)
    except OSError as error:
        raise StorageError(
            f"cannot read {_text(folder)} ({error.strerror}): pass a folder that telemetry has"
            " written rows to"
        ) from error
    return found


def _runs(folder: Folders) -> list[Run]:
    _hosts(folder)
    return runs_in(_folders(folder))


def _take_along(host: StoredHost) -> None:
    """Move the rows that a killed program has left on this machine to the directory."""
    live = Path(host.note.folder)
    if host.note.folder and live.is_dir():
        with suppress(OSError):
            remove_if_free(live)


def _opened(hosts: list[StoredHost]) -> list[tuple[str, HostTables]]:
    from mesh_telemetry._tables.host_tables import HostTables

    return [
        (
            f"{host.note.name}/{host.note.number}",
            # Rows that are not on disk belong to a running program, which must be queried instead.
            HostTables(
                host.folder / "none",
                spill=host.folder,
                own_proc=host.note.own_proc,
                is_over=True,
            ),
        )
        for host in hosts
    ]


def _ask(hosts: list[tuple[str, HostTables]], fragment: Fragment) -> Iterator[ShardAnswer]:
    from mesh_telemetry._rows.added_tables import added_tables

    fragment = replace(fragment, added=added_tables(fragment.tables))
    with ThreadPoolExecutor(_HOSTS_AT_ONCE, "mesh-telemetry-past") as pool:
        yield from pool.map(partial(_answer, fragment), hosts)


def _answer(fragment: Fragment, named: tuple[str, HostTables]) -> ShardAnswer:
    from mesh_telemetry._query.engine import run_fragment
    from mesh_telemetry._query.fragment import QUERY_FAULT, TOO_MUCH, ShardAnswer
    from mesh_telemetry._tables.extended_rows import ExtendedRows

    label, rows = named
    try:
        return ShardAnswer(label, run_fragment(fragment, ExtendedRows(rows, fragment.added)), None)
    except QueryError as error:
        is_marked = str(error).startswith((QUERY_FAULT, TOO_MUCH))
        return ShardAnswer(label, None, f"{'' if is_marked else QUERY_FAULT}{error}")
    except Exception as error:
        return ShardAnswer(label, None, f"{error}")


def _folders(folder: Folders) -> list[Path]:
    several = [folder] if isinstance(folder, str | os.PathLike) else list(folder)
    return [Path(each) for each in several]


def _text(folder: Folders) -> str:
    return ", ".join(repr(str(each)) for each in _folders(folder))
