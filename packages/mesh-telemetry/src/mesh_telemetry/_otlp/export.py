"""Exports the rows of a host to a collector, in threads of its telemetry process.

Each signal has a dedicated thread and a separate read position, so a collector that is slow with
one signal does not delay the others. Rows wait in the segments of processes, and nothing is read
before the previous rows have been accepted or dropped.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mesh_telemetry._otlp.client import OtlpClient, PostOutcome, PostResponse
from mesh_telemetry._otlp.logs import LOG_TABLES, LogParts
from mesh_telemetry._otlp.metrics import METRIC_TABLES, MetricParts, dropped_metric
from mesh_telemetry._otlp.parts import Part, rejected, requests, resource_of
from mesh_telemetry._otlp.segment_tail import SegmentTail
from mesh_telemetry._otlp.traces import TRACE_TABLES, TraceParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_telemetry._events.proc_folder import Place
    from mesh_telemetry._otlp.options import OtlpConfig
    from mesh_telemetry._otlp.segment_tail import NewRows

__all__ = ["OtlpExport"]

_PAUSE_S, _PAUSE_S_MAX = 0.5, 30.0
# Time limit for the last requests when the program closes; remaining rows are dropped.
_CLOSE_S = 5.0
_WARN_S = 60.0


class _Parts(Protocol):
    def take(
        self, fresh: Sequence[NewRows], places: dict[str, Place], is_last: bool
    ) -> list[Part]: ...


class OtlpExport:
    """All exports of a host, until it is closed.

    Args:
        config: The configuration of the export.
        folder: The folder of the host.
        spill: The folder with evicted segments, if they are kept.
        own_proc: The exporting process, which appears in no table.
    """

    def __init__(self, config: OtlpConfig, folder: Path, spill: Path | None, own_proc: int) -> None:
        self._is_over = threading.Event()
        self._until = [float("inf")]
        drops = _Drops()
        kinds: list[tuple[bool, str, tuple[str, ...], _Parts]] = [
            (config.metrics, "metrics", METRIC_TABLES, MetricParts(config)),
            (config.logs, "logs", LOG_TABLES, LogParts(config)),
            (config.traces, "traces", TRACE_TABLES, TraceParts(config)),
        ]
        self._threads = []
        for is_wanted, signal, tables, parts in kinds:
            if is_wanted:
                marks = folder / f"otlp-{signal}.json"
                tail = SegmentTail(folder, spill, tables, own_proc, marks)
                one = _SignalExport(config, signal, tail, parts, drops, self._is_over, self._until)
                name = f"mesh-telemetry-otlp-{signal}"
                self._threads.append(threading.Thread(target=one.run, name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def close(self, budget_s: float = _CLOSE_S) -> None:
        """Export the remaining rows for at most some seconds; later calls do nothing."""
        until = time.monotonic() + min(budget_s, _CLOSE_S)
        self._until[0] = min(self._until[0], until)
        self._is_over.set()
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))


class _Drops:
    """Counts of items that were not exported, until they are reported."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._since_ns = time.time_ns()
        self._warned = -_WARN_S

    def add(self, signal: str, cause: str, count: int, detail: str) -> None:
        """Count dropped items, and print a message to stderr at most once a minute."""
        with self._turn:
            self._counts[signal, cause] = self._counts.get((signal, cause), 0) + count
            is_quiet = time.monotonic() - self._warned < _WARN_S
            if not is_quiet:
                self._warned = time.monotonic()
        if not is_quiet:
            print(
                f"mesh-telemetry: {count} {signal} not exported ({cause}: {detail})",
                file=sys.stderr,
                flush=True,
            )

    def take(self) -> tuple[dict[tuple[str, str], int], int, int]:
        """Return the counts since the last call, with both times."""
        with self._turn:
            counts, self._counts = self._counts, {}
            since_ns, self._since_ns = self._since_ns, time.time_ns()
            return counts, since_ns, self._since_ns


class _SignalExport:
    """Exports metrics, logs or traces."""

    def __init__(
        self,
        config: OtlpConfig,
        signal: str,
        tail: SegmentTail,
        parts: _Parts,
        drops: _Drops,
        is_over: threading.Event,
        until: list[float],
    ) -> None:
        self._config = config
        self._signal = signal
        self._tail = tail
        self._parts = parts
        self._drops = drops
        self._is_over = is_over
        self._until = until
        self._client = OtlpClient(config, signal)

    def run(self) -> None:
        """Export until closed, and then export the remaining rows."""
        has_more = False
        while has_more or not self._is_over.wait(self._config.interval_s):
            if self._is_over.is_set():
                break
            has_more = self._cycle(is_last=False)
        while self._cycle(is_last=False) and time.monotonic() < self._until[0]:
            pass
        self._cycle(is_last=True)

    def _cycle(self, *, is_last: bool) -> bool:
        """Export new rows; return whether there are more."""
        fresh, has_more = self._tail.take()
        lost, self._tail.lost_segments = self._tail.lost_segments, 0
        if lost:
            self._drops.add(self._signal, "room", lost, "segments were evicted before being read")
        places = {one.place.proc: one.place for one in self._tail.folders}
        parts = self._parts.take(fresh, places, is_last)
        if self._signal == "metrics":
            parts += self._dropped(places)
        for body, count in requests(self._signal, parts):
            self._deliver(body, count)
        if fresh:
            self._tail.save()
        return has_more

    def _dropped(self, places: dict[str, Place]) -> list[Part]:
        counts, since_ns, now_ns = self._drops.take()
        if not counts or not places:
            return []
        # The metric is attributed to the first process of the host.
        resource = resource_of(self._config, next(iter(places.values())))
        return [Part(resource, dropped_metric(counts, since_ns, now_ns))]

    def _deliver(self, body: bytes, count: int) -> None:
        """Post a request until it is accepted, rejected, or too old."""
        since = time.monotonic()
        pause_s = _PAUSE_S
        while True:
            # This is determined before the request, so that at least one attempt is made after
            # closing.
            is_over = self._is_over.is_set()
            left_s = self._until[0] - time.monotonic()
            if is_over and left_s <= 0:
                posted = PostResponse(PostOutcome.LATER, "telemetry was closed")
            else:
                posted = self._client.post(body, min(self._config.timeout_s, max(left_s, 0.1)))
            if posted.outcome is PostOutcome.TAKEN:
                missing = rejected(self._signal, posted.body)
                if missing:
                    self._drops.add(self._signal, "rejected", missing, "rejected by the collector")
                return
            if posted.outcome is PostOutcome.REFUSED:
                self._drops.add(self._signal, "refused", count, posted.cause)
                return
            wait_s = max(pause_s, posted.pause_s)
            is_late = time.monotonic() + wait_s - since > self._config.retry_s
            if is_over or is_late:
                cause = "closed" if is_over else "retries"
                self._drops.add(self._signal, cause, count, posted.cause)
                return
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            self._is_over.wait(wait_s)
