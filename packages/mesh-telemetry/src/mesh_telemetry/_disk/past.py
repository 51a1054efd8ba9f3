"""Rows of programs that have ended: asked like those of one that runs."""

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
    from mesh_telemetry._rows.host_tables import HostTables

__all__ = ["Past"]

_HOSTS_AT_ONCE = 4

Folders = str | Path | Sequence[str | Path]


class Past:
    """The rows of one run, which are in folders; no program need run. A context manager.

    They come there by `TelemetryConfig.spill` and by `Telemetry.save`. What a program that was
    killed has left in the memory of this machine is moved there first.

    Args:
        folder: Where they are; several when each host has its own.
        run: Which run, as `Past.runs` names it; the last one if left out.

    Raises:
        StorageError: There is no such folder, or no such run in it.

    Example:
        >>> with Past("/shared/telemetry") as past:
        ...     past.query("select kind, reason from failures order by timestamp_us").table
    """

    def __init__(self, folder: Folders, run: str | None = None) -> None:
        found = _hosts(folder)
        if run is None:
            run = _runs(folder)[-1].name if found else None
        if run is None or run not in found:
            known = ", ".join(found) or "none at all"
            wanted = "no rows" if run is None else f"no run {run!r}"
            raise StorageError(f"{wanted} in {_text(folder)}: there are {known}")
        self.run: str = run
        self._hosts = _opened(found[run])

    @staticmethod
    def runs(folder: Folders) -> list[Run]:
        """Gives the runs that there are in a folder or several, oldest first.

        Raises:
            StorageError: There is no such folder.
        """
        return _runs(folder)

    def tables(self) -> Mapping[str, pa.Schema]:
        """Gives the schemas of all tables, by name."""
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
        """Asks what all hosts of the run have left.

        Live tables are as they were recorded last, where `TelemetryConfig.snapshot_s` was set.

        Args:
            sql: One `select`, over the tables that `tables` names.
            params: What stands for `$1`, `$2`, or for `$name`.
            as_of: Ask for rows as they were then: seconds since the epoch, or a time with a zone.
            timeout: Seconds after which a host is left out.

        Returns:
            The rows as `table`, and as `coverage` which hosts they are of.

        Raises:
            QueryError: The question is no SQL that can be answered.
            CoverageError: No host can be read.
            TelemetryError: It is closed.
            ValueError: `as_of` is a time without a zone, or `timeout` is not above 0.
        """
        # Here, not at the top: processes that only record must not load Arrow.
        from mesh_telemetry._query.query import Query

        if not timeout > 0:
            raise ValueError(f"timeout {timeout} is not above 0")
        if not self._hosts:
            raise StorageError("it is closed: open the folder again")
        return Query(sql, params, self.tables()).answer(
            partial(_ask, self._hosts), until_us=microseconds(as_of), timeout_s=timeout
        )

    def close(self) -> None:
        """Forgets what it has read. Twice is the same as once."""
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
            f"{_text(folder)} cannot be read ({error.strerror}): name a folder that"
            " telemetry has kept rows in"
        ) from error
    return found


def _runs(folder: Folders) -> list[Run]:
    _hosts(folder)
    return runs_in(_folders(folder))


def _take_along(host: StoredHost) -> None:
    """Moves what a program has left on this machine that was killed; it is there no more then."""
    live = Path(host.note.folder)
    if host.note.folder and live.is_dir():
        with suppress(OSError):
            remove_if_free(live)


def _opened(hosts: list[StoredHost]) -> list[tuple[str, HostTables]]:
    from mesh_telemetry._rows.host_tables import HostTables

    return [
        (
            f"{host.note.name}/{host.note.number}",
            # What is not on disk yet is of a program that runs: that one is to be asked.
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
    from mesh_telemetry._rows.added_tables import RowsWithAdded

    label, rows = named
    try:
        return ShardAnswer(label, run_fragment(fragment, RowsWithAdded(rows, fragment.added)), None)
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
