"""The rows of a host on disk: converted to Parquet in the background, within a size limit."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from mesh_telemetry._disk.conversion import convert, pending_segments
from mesh_telemetry._disk.stored_runs import HostMetadata, read_host_metadata, write_host_metadata
from mesh_telemetry._disk.stored_tables import StoredTables
from mesh_telemetry._events.folders import Lock, is_locked, remove_if_free
from mesh_telemetry._events.proc_folder import proc_folders
from mesh_telemetry._events.segment_export import move_proc
from mesh_telemetry._rows.live_tables import live_batches
from mesh_telemetry._rows.schemas import LIVE_TABLES, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_telemetry._options import TelemetryConfig

__all__ = ["Spill", "convert_remaining"]

_log = logging.getLogger("mesh_telemetry")
_PERIOD_S = 1.0
# Waiting segments are converted when they exceed this size or have waited for this time.
_WAITING_BYTES_MAX = 8 << 20
_WAITING_S_MAX = 30.0
# A segment may contain events of telemetry itself that are marked as such only after the move.
_SETTLED_S = 1.0
# The inverse of the maximum share of the time that writing live tables may take.
_SNAPSHOT_REST = 20


class Spill:
    """Manages the rows of one host on disk until it is closed.

    Args:
        live: The folder of the host in memory.
        folder: The folder for its evicted segments and Parquet files.
        metadata: The description of the host and the program.
        config: The options.
    """

    def __init__(
        self, live: Path, folder: Path, metadata: HostMetadata, config: TelemetryConfig
    ) -> None:
        self._live = live
        self._folder = folder
        self._config = config
        self._metadata = metadata
        self._own_procs = frozenset((metadata.own_proc,))
        self._stored = StoredTables(folder)
        self._lock: Lock | None = None
        self._turn = threading.Lock()
        self._end = threading.Event()
        self._snapshot_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="mesh-telemetry-spill", daemon=True)
        self._thread.start()

    def close(self, budget_s: float) -> None:
        """Keep all remaining rows: as Parquet if time permits, otherwise as segments."""
        self._end.set()
        self._thread.join(budget_s)
        with self._turn:
            self._move_remaining()
            if self._has_lock():
                self._convert_pending(time.monotonic() + budget_s, is_last=True)
                assert self._lock is not None, "it was just taken"
                self._lock.close()
                self._lock = None
            with suppress(OSError):
                write_host_metadata(
                    self._folder, self._metadata._replace(end_us=time.time_ns() // 1000)
                )

    def _run(self) -> None:
        with suppress(Exception):
            convert_remaining(Path(self._config.spill or ""), self._metadata.name)
        rest_s = 0.0
        while not self._end.wait(rest_s):
            rest_s = self._period_s
            with self._turn:
                if self._has_lock():
                    if self._convert_pending(time.monotonic() + _PERIOD_S, is_last=False):
                        rest_s = 0.0
                    self._snapshot()

    def _snapshot(self) -> None:
        """Write a snapshot of the live tables when it is due."""
        period_s = self._config.snapshot_s
        began = time.monotonic()
        if period_s is None or began < self._snapshot_at:
            return
        try:
            folders = proc_folders(self._live, self._folder)
            for table in sorted(LIVE_TABLES):
                batches = live_batches(table, folders)
                if batches:
                    self._stored.write(table, pa.Table.from_batches(batches, TABLES[table]), ())
                self._stored.merge(table, TABLES[table])
        except OSError as error:
            _log.warning("cannot write live tables to %s: %s", self._folder, error)
        took_s = time.monotonic() - began
        self._snapshot_at = began + max(period_s, took_s * _SNAPSHOT_REST)

    @property
    def _period_s(self) -> float:
        return min(_PERIOD_S, self._config.snapshot_s or _PERIOD_S)

    def _has_lock(self) -> bool:
        """Return whether this process manages the folder, and not a predecessor or replacement."""
        if self._lock is None:
            with suppress(OSError):
                self._lock = Lock(self._folder, is_shared=False)
                self._stored.remove_incomplete()
        return self._lock is not None

    def _convert_pending(self, deadline: float, *, is_last: bool) -> bool:
        """Convert waiting segments if there are enough of them; return whether some remain."""
        try:
            if self._config.spill_bytes is not None:
                enforce_size_limit(
                    Path(self._config.spill or ""), self._metadata.name, self._config.spill_bytes
                )
            waiting = pending_segments(self._live, self._folder)
            if not is_last:
                now = time.time()
                waiting = [one for one in waiting if now - one.moved_s > _SETTLED_S]
                length = sum(one.length for one in waiting)
                oldest_s = min((one.moved_s for one in waiting), default=now)
                if length < _WAITING_BYTES_MAX and now - oldest_s < _WAITING_S_MAX:
                    return False
            return bool(convert(waiting, self._stored, self._own_procs, deadline))
        except OSError as error:
            # The segments still exist, and the next round retries.
            _log.warning("cannot write evicted events to %s: %s", self._folder, error)
            return False

    def _move_remaining(self) -> None:
        with suppress(OSError), os.scandir(self._live) as entries:
            folders = [Path(one.path) for one in entries if one.is_dir(follow_symlinks=False)]
            for folder in folders:
                if not is_locked(folder):
                    move_proc(folder, self._folder / folder.name)


def convert_remaining(spill: Path, host_name: str) -> None:
    """Convert the segments that killed programs have left on this host."""
    for folder, metadata in _hosts_in(spill, host_name):
        live = Path(metadata.folder)
        if live.exists() and not remove_if_free(live):
            continue
        with suppress(OSError):
            lock = Lock(folder, is_shared=False)
            try:
                stored = StoredTables(folder)
                stored.remove_incomplete()
                waiting = pending_segments(live, folder)
                own = frozenset((metadata.own_proc,))
                convert(waiting, stored, own, float("inf"))
            finally:
                lock.close()


def enforce_size_limit(spill: Path, host_name: str, bytes_max: int) -> None:
    """Delete the oldest files of this host in all runs until the rest fits."""
    files = []
    for folder, _ in _hosts_in(spill, host_name):
        for path in folder.rglob("*"):
            with suppress(OSError):
                stat = path.lstat()
                if path.suffix in (".parquet", ".seg"):
                    age = int(path.name.split("-")[-2]) if path.suffix == ".parquet" else None
                    files.append((age or stat.st_mtime_ns // 1000, stat.st_size, path))
    total = sum(length for _, length, _ in files)
    for _, length, path in sorted(files):
        if total <= bytes_max:
            break
        with suppress(OSError):
            path.unlink()
            total -= length


def _hosts_in(spill: Path, host_name: str) -> Iterator[tuple[Path, HostMetadata]]:
    with suppress(OSError):
        for run in sorted(spill.iterdir()):
            with suppress(OSError):
                for folder in sorted(run.iterdir()):
                    metadata = read_host_metadata(folder)
                    if metadata is not None and metadata.name == host_name:
                        yield folder, metadata
