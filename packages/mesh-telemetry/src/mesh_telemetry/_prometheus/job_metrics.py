"""Collects the metrics of all hosts of a program."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future as LocalFuture
from typing import TYPE_CHECKING

from mesh_core import MeshError, SupervisionError
from mesh_telemetry._errors import TelemetryError, cause_of
from mesh_telemetry._hangs.hang import HANG_KINDS
from mesh_telemetry._prometheus.family import Family, HistogramValue, Sample
from mesh_telemetry._prometheus.heads import (
    HANGS,
    HEADS,
    HOSTS,
    HOSTS_UNREACHABLE,
    SCRAPE_DURATION,
    SERIES_OMITTED,
)
from mesh_telemetry._prometheus.name_registry import NameRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mesh_core import Future
    from mesh_telemetry._hosts.coordinator import Coordinator
    from mesh_telemetry._hosts.host_handle import HostHandle
    from mesh_telemetry._prometheus.family import FamilyHead
    from mesh_telemetry._prometheus.host_metrics import HostSnapshot

__all__ = ["JobMetrics"]

# Time limits for the list of hosts: of the first scrape, and of later ones, which use the last list
# if the coordinator is busy.
_FIRST_HOSTS_S, _HOSTS_S = 10.0, 1.0
# The share of the time limit in which hosts count new rows, before they query their processes.
_COUNT_SHARE = 0.3
_SERIES_MAX = 100_000


class JobMetrics:
    """Requests the metrics of all hosts; concurrent scrapes share one result.

    Args:
        coordinator: Returns the actor that knows the hosts.
        series_max: The maximum number of series of a scrape; each bucket of a histogram counts.
    """

    def __init__(
        self, coordinator: Callable[[], Coordinator], series_max: int = _SERIES_MAX
    ) -> None:
        self._coordinator = coordinator
        self._series_max = series_max
        self._lock = threading.Lock()
        self._running: LocalFuture[list[Family]] | None = None
        self._handles: Sequence[HostHandle] = ()
        self._host_labels: dict[int, str] = {}

    def scrape(self, limit_s: float) -> list[Family]:
        """Return the metrics of all hosts that reply in time.

        Args:
            limit_s: The time to wait for hosts, in seconds.

        Raises:
            TelemetryError: Telemetry is not started.
            TimeoutError: The program did not return its hosts in time.
        """
        mine: LocalFuture[list[Family]] = LocalFuture()
        with self._lock:
            running = self._running = self._running or mine
        if running is not mine:
            return running.result(_FIRST_HOSTS_S + limit_s)
        try:
            mine.set_result(self._collect(limit_s))
        except BaseException as error:
            mine.set_exception(error)
        finally:
            with self._lock:
                self._running = None
        return mine.result()

    def _collect(self, limit_s: float) -> list[Family]:
        coordinator = self._coordinator()
        began = time.monotonic()
        handles = self._current_hosts(coordinator)
        requests = [(handle, _request(handle, limit_s * _COUNT_SHARE)) for handle in handles]
        deadline = time.monotonic() + limit_s
        snapshots: list[tuple[str, HostSnapshot]] = []
        states = {"up": 0, "starting": 0, "unreachable": 0}
        for handle, request in requests:
            if request is None:
                states["unreachable" if handle.error else "starting"] += 1
                continue
            left_s = max(deadline - time.monotonic(), 0.0)
            snapshot = _reply(coordinator, handle, request, left_s)
            states["unreachable" if snapshot is None else "up"] += 1
            if snapshot is not None:
                label = self._host_label(handle.number, snapshot.host_name)
                snapshots.append((label, snapshot))
        hangs = Counter(dict.fromkeys(HANG_KINDS, 0))
        for _, snapshot in snapshots:
            hangs.update(snapshot.open_hangs)
        about_job = [
            Family(HOSTS, [Sample((("state", name),), count) for name, count in states.items()]),
            Family(HOSTS_UNREACHABLE, [Sample((), states["unreachable"])]),
            Family(HANGS, [Sample((("kind", kind),), count) for kind, count in hangs.items()]),
            Family(SCRAPE_DURATION, [Sample((), time.monotonic() - began)]),
        ]
        return _merged(about_job, snapshots, self._series_max)

    def _current_hosts(self, coordinator: Coordinator) -> Sequence[HostHandle]:
        """Return the hosts; the last known ones while the coordinator starts lost processes."""
        request = coordinator.hosts.call_one()
        try:
            self._handles = request.get(_HOSTS_S if self._handles else _FIRST_HOSTS_S)
        except TimeoutError:
            if not self._handles:
                raise
        return self._handles

    def _host_label(self, number: int, name: str) -> str:
        """Return the name of a host; with its number if another host has the same name."""
        if number not in self._host_labels:
            is_taken = name in self._host_labels.values()
            self._host_labels[number] = f"{name}/{number}" if is_taken else name
        return self._host_labels[number]


def _request(handle: HostHandle, count_s: float) -> Future[HostSnapshot] | None:
    """Request the metrics of a host; None if it cannot be called."""
    if handle.rows is None:
        return None
    try:
        return handle.rows.metrics.call_one(count_s)
    except MeshError:
        return None


def _reply(
    coordinator: Coordinator, handle: HostHandle, request: Future[HostSnapshot], timeout_s: float
) -> HostSnapshot | None:
    try:
        return request.get(timeout_s)
    except TimeoutError:
        request.cancel()
    except MeshError as error:
        if isinstance(error, SupervisionError) and not isinstance(error, TelemetryError):
            assert handle.rows is not None, "it was called"
            # Only the caller that detects the failure is notified of it.
            coordinator.lost.broadcast(handle.number, handle.rows, cause_of(error))
    return None


def _merged(
    about_job: Sequence[Family], snapshots: Iterable[tuple[str, HostSnapshot]], series_max: int
) -> list[Family]:
    """Combine the families of hosts, with a label for the host.

    Families of Mesh come first, so that measurements of the program do not displace them.
    """
    names = NameRegistry()
    by_head: dict[FamilyHead, list[Sample]] = {head: [] for head in HEADS}
    by_head.update((family.head, list(family.samples)) for family in about_job)
    omitted = 0
    for host, snapshot in snapshots:
        omitted += snapshot.omitted
        for family in snapshot.families:
            head = names.head_for(family.head)
            if head is None:
                omitted += len(family.samples)
                continue
            by_head.setdefault(head, []).extend(
                Sample((("host", host), *sample.labels), sample.value) for sample in family.samples
            )
    measured = sorted(head for head in by_head if head.is_measured)
    found = []
    left = series_max
    for head in (*HEADS, *measured):
        kept = []
        for sample in by_head[head]:
            left -= _line_count(sample)
            if left >= 0:
                kept.append(sample)
            else:
                omitted += 1
        found.append(Family(head, kept))
    # The limit does not apply to the series that reports it.
    at = HEADS.index(SERIES_OMITTED)
    found[at] = Family(SERIES_OMITTED, [Sample((), omitted)])
    return found


def _line_count(sample: Sample) -> int:
    value = sample.value
    return len(value.bounds) + 3 if isinstance(value, HistogramValue) else 1
