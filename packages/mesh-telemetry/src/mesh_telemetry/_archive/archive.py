"""Rows of programs that have ended, which are queried like a running program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_telemetry._disk.stored_runs import Run, StoredHost, hosts_of, runs_in
from mesh_telemetry._errors import StorageError
from mesh_telemetry._events.folders import remove_if_free

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from mesh_telemetry._archive.archive_reader import ArchiveReader
    from mesh_telemetry._query.coverage import QueryResult

__all__ = ["Archive"]

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
        >>> with Archive("/shared/telemetry") as archive:
        ...     archive.query("select kind, reason from failures order by timestamp_us").table
    """

    def __init__(self, folder: Folders, run: str | None = None) -> None:
        found = _hosts(folder)
        if run is None:
            run = _runs(folder)[-1].name if found else None
        if run is None or run not in found:
            known = ", ".join(found) or "none at all"
            wanted = "no rows" if run is None else f"no run {run!r}"
            raise StorageError(f"{wanted} in {_paths_text(folder)}: the runs are {known}")
        self.run: str = run
        self._hosts = found[run]
        self._reader: ArchiveReader | None = None

    @staticmethod
    def runs(folder: Folders) -> list[Run]:
        """Return the runs in one or several directories, oldest first.

        Raises:
            StorageError: A directory does not exist.
        """
        return _runs(folder)

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the schemas of all tables, by name."""
        return self._loaded_reader().tables()

    def query(
        self,
        sql: str,
        params: Sequence[object] | Mapping[str, object] | None = None,
        *,
        as_of: float | datetime | None = None,
        timeout: float = 60.0,
    ) -> QueryResult:
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
        if not timeout > 0:
            raise ValueError(f"timeout {timeout} is not positive")
        if not self._hosts:
            raise StorageError("the recording is closed: open the folder again")
        return self._loaded_reader().query(sql, params, as_of, timeout)

    def close(self) -> None:
        """Release the rows that were read; later calls do nothing."""
        self._hosts = []
        self._reader = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _loaded_reader(self) -> ArchiveReader:
        if self._reader is None:
            # The query engine takes a second, and every recorded process loads this module.
            from mesh_telemetry._archive.archive_reader import ArchiveReader  # noqa: PLC0415

            self._reader = ArchiveReader(self._hosts)
        return self._reader


def _hosts(folder: Folders) -> dict[str, list[StoredHost]]:
    folders = _folders(folder)
    try:
        found = hosts_of(folders)
        for hosts in found.values():
            for host in hosts:
                _move_remaining_rows(host)
    except OSError as error:
        raise StorageError(
            f"cannot read {_paths_text(folder)} ({error.strerror}): pass a folder to which"
            " telemetry has written rows"
        ) from error
    return found


def _runs(folder: Folders) -> list[Run]:
    _hosts(folder)
    return runs_in(_folders(folder))


def _move_remaining_rows(host: StoredHost) -> None:
    """Move the rows that a killed program has left on this machine to the directory."""
    live = Path(host.metadata.folder)
    if host.metadata.folder and live.is_dir():
        with suppress(OSError):
            remove_if_free(live)


def _folders(folder: Folders) -> list[Path]:
    several = [folder] if isinstance(folder, str | os.PathLike) else list(folder)
    return [Path(each) for each in several]


def _paths_text(folder: Folders) -> str:
    return ", ".join(repr(str(each)) for each in _folders(folder))
