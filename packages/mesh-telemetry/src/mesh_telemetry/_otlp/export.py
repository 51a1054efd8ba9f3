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
from mesh_telemetry._otlp.logs import LOG_TABLES, LogConverter
from mesh_telemetry._otlp.metrics import METRIC_TABLES, MetricConverter, dropped_metric
from mesh_telemetry._otlp.requests import Item, rejected, requests, resource_of
from mesh_telemetry._otlp.traces import TRACE_TABLES, SpanConverter
from mesh_telemetry._rows.segment_tail import SegmentTail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_telemetry._events.proc_folder import ProcIdentity
    from mesh_telemetry._otlp.options import OtlpConfig
    from mesh_telemetry._rows.segment_tail import NewRows

__all__ = ["OtlpExport"]

_PAUSE_S, _PAUSE_S_MAX = 0.5, 30.0
# Time limit for the last requests when the program closes; remaining rows are dropped.
_CLOSE_S = 5.0
_WARN_S = 60.0


class _Converter(Protocol):
    def convert(
        self, new_rows: Sequence[NewRows], identities: dict[str, ProcIdentity], is_last: bool
    ) -> list[Item]: ...


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
        drop_counts = _DropCounts()
        kinds: list[tuple[bool, str, tuple[str, ...], _Converter]] = [
            (config.metrics, "metrics", METRIC_TABLES, MetricConverter(config)),
            (config.logs, "logs", LOG_TABLES, LogConverter(config)),
            (config.traces, "traces", TRACE_TABLES, SpanConverter(config)),
        ]
        self._threads = []
        for is_wanted, signal, tables, items in kinds:
            if is_wanted:
                position_file = folder / f"otlp-{signal}.json"
                tail = SegmentTail(folder, spill, tables, own_proc, position_file)
                one = _SignalExport(
                    config, signal, tail, items, drop_counts, self._is_over, self._until
                )
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


class _DropCounts:
    """Counts of items that were not exported, until they are reported."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}
        self._since_ns = time.time_ns()
        self._warned = -_WARN_S

    def add(self, signal: str, cause: str, count: int, detail: str) -> None:
        """Count dropped items, and print a message to stderr at most once a minute."""
        with self._lock:
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
        with self._lock:
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
        items: _Converter,
        drop_counts: _DropCounts,
        is_over: threading.Event,
        until: list[float],
    ) -> None:
        self._config = config
        self._signal = signal
        self._tail = tail
        self._converter = items
        self._drop_counts = drop_counts
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
        new_rows, has_more = self._tail.read()
        lost, self._tail.lost_segments = self._tail.lost_segments, 0
        if lost:
            self._drop_counts.add(
                self._signal, "space", lost, "segments were evicted before being read"
            )
        identities = {one.identity.proc: one.identity for one in self._tail.folders}
        items = self._converter.convert(new_rows, identities, is_last)
        if self._signal == "metrics":
            items += self._dropped_items(identities)
        for body, count in requests(self._signal, items):
            self._deliver(body, count)
        if new_rows:
            self._tail.save()
        return has_more

    def _dropped_items(self, identities: dict[str, ProcIdentity]) -> list[Item]:
        counts, since_ns, now_ns = self._drop_counts.take()
        if not counts or not identities:
            return []
        # The metric is attributed to the first process of the host.
        resource = resource_of(self._config, next(iter(identities.values())))
        return [Item(resource, dropped_metric(counts, since_ns, now_ns))]

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
                response = PostResponse(PostOutcome.RETRY, "telemetry was closed")
            else:
                response = self._client.post(body, min(self._config.timeout_s, max(left_s, 0.1)))
            if response.outcome is PostOutcome.ACCEPTED:
                missing = rejected(self._signal, response.body)
                if missing:
                    self._drop_counts.add(
                        self._signal, "rejected", missing, "rejected by the collector"
                    )
                return
            if response.outcome is PostOutcome.REJECTED:
                self._drop_counts.add(self._signal, "refused", count, response.cause)
                return
            wait_s = max(pause_s, response.pause_s)
            is_late = time.monotonic() + wait_s - since > self._config.retry_s
            if is_over or is_late:
                cause = "closed" if is_over else "retries"
                self._drop_counts.add(self._signal, cause, count, response.cause)
                return
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            self._is_over.wait(wait_s)
