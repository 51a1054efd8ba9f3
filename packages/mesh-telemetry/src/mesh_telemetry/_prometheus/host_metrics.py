"""Counts the events of a host from the first scrape on, in its telemetry process.

Rows are read once, while they are in the segments of processes. The counts are kept longer than
the rows, and are stored with the position in the segments, so that they continue after a crash of
this process.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._prometheus.family import Family, Sample
from mesh_telemetry._prometheus.heads import DROPPED, POINTS_OMITTED, SEGMENTS_MISSED
from mesh_telemetry._prometheus.host_counts import COUNTED_TABLES, HostCounts
from mesh_telemetry._prometheus.live_families import live_families
from mesh_telemetry._rows.segment_tail import SegmentTail

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_telemetry._events.proc_folder import ProcFolder

__all__ = ["HostMetrics", "HostSnapshot"]

_INTERVAL_S = 1.0
# The pause between two reads if there are more rows, so that scrapes and queries can run.
_PAUSE_S = 0.05
_CLOSE_S = 2.0
_SAVE_INTERVAL_S = 5.0
# The maximum number of series that the host counts, in each of two groups, and of live series in
# each family.
_SERIES_MAX = 10_000


class HostSnapshot(NamedTuple):
    """The metrics of a host, without the label for the host."""

    host_name: str
    families: list[Family]
    open_hangs: dict[str, int]
    """The number of ranks that keep others waiting now, by kind."""
    omitted: int
    """The number of live series that were left out."""


class HostMetrics:
    """Counts in a thread, which starts at the first scrape and ends when this is closed.

    Args:
        folder: The folder of the host.
        spill: The folder with evicted segments, if they are kept.
        own_proc: The counting process, which appears in no table.
        host_name: The host name of the machine.
        series_max: The maximum number of series in each of several groups.
    """

    def __init__(
        self,
        folder: Path,
        spill: Path | None,
        own_proc: int,
        host_name: str,
        series_max: int = _SERIES_MAX,
    ) -> None:
        self._host_name = host_name
        self._state_file = folder / "metrics-state.pickle"
        self._series_max = series_max
        self._tail = SegmentTail(folder, spill, COUNTED_TABLES, own_proc, None)
        self._counts = HostCounts(series_max)
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._saved_at = 0.0
        self._thread: threading.Thread | None = None

    def snapshot(self, limit_s: float) -> HostSnapshot:
        """Count the new rows, and return all metrics.

        Args:
            limit_s: The time for counting, in seconds. If there are more rows, they are counted
                later.

        Raises:
            TelemetryError: The telemetry process is overloaded.
        """
        deadline = time.monotonic() + limit_s
        if not self._lock.acquire(timeout=limit_s):
            raise TelemetryError("counting takes too long: scrape less often")
        try:
            self._start()
            while self._count() and time.monotonic() < deadline:
                pass
            families = [*self._counts.series.families(), *self._about_itself()]
            open_hangs = self._counts.open_hang_counts()
            folders: list[ProcFolder] = self._tail.folders
        finally:
            self._lock.release()
        live, omitted = live_families(folders, self._series_max)
        return HostSnapshot(self._host_name, families + live, open_hangs, omitted)

    def close(self) -> None:
        """Stop counting; later calls do nothing."""
        self._is_over.set()
        thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_S)

    def _start(self) -> None:
        """Continue with the counts of a predecessor, and start the thread."""
        if self._thread is not None or self._is_over.is_set():
            return
        # Only processes of this user can write to the folder. A file that cannot be read is
        # ignored; then counting begins with the oldest rows.
        with suppress(OSError, pickle.UnpicklingError, EOFError):
            self._tail.positions, self._counts = pickle.loads(self._state_file.read_bytes())
        name = "mesh-telemetry-metrics"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        has_more = False
        while not self._is_over.wait(_PAUSE_S if has_more else _INTERVAL_S):
            with self._lock:
                has_more = self._count()

    def _count(self) -> bool:
        """Count some new rows; return whether there are more."""
        new_rows, has_more = self._tail.read()
        lost, self._tail.lost_segments = self._tail.lost_segments, 0
        self._counts.segments_missed += lost
        self._counts.add(new_rows)
        self._counts.add_cpu(self._tail.folders)
        if time.monotonic() - self._saved_at > _SAVE_INTERVAL_S:
            self._save()
        return has_more

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        incomplete = self._state_file.with_suffix(".new")
        with suppress(OSError):
            state = pickle.dumps((self._tail.positions, self._counts))
            handle = os.open(incomplete, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(handle, "wb") as file:
                file.write(state)
            incomplete.rename(self._state_file)

    def _about_itself(self) -> list[Family]:
        """Return the families for data that was not counted; they have a value from the start."""
        dropped = [
            Sample((("family", family), ("reason", reason)), count)
            for (family, reason), count in self._counts.dropped.items()
        ]
        omitted = [
            Sample((("reason", reason),), count)
            for reason, count in self._counts.series.omitted.items()
        ]
        return [
            Family(DROPPED, dropped),
            Family(POINTS_OMITTED, omitted),
            Family(SEGMENTS_MISSED, [Sample((), self._counts.segments_missed)]),
        ]
