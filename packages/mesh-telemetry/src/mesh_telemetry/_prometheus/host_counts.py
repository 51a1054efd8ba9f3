"""Everything that is counted on a host: messages, measurements, failures, CPU time and hangs."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from mesh_telemetry._hangs.tables import HANGS, open_hangs
from mesh_telemetry._metrics.measured_points import MEASUREMENT_TABLES, measured_points
from mesh_telemetry._metrics.message_points import MESSAGE_POINT_TABLES, MessagePoints
from mesh_telemetry._metrics.points import HistogramPoint, NumberPoint
from mesh_telemetry._prometheus.family import HistogramValue
from mesh_telemetry._prometheus.heads import CPU, DERIVED, FAILURES
from mesh_telemetry._prometheus.host_series import HostSeries
from mesh_telemetry._prometheus.live_families import proc_rows
from mesh_telemetry._prometheus.names import attribute_labels, head_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from mesh_telemetry._events.proc_folder import ProcFolder, ProcIdentity
    from mesh_telemetry._metrics.points import Point
    from mesh_telemetry._prometheus.family import FamilyHead, Labels
    from mesh_telemetry._rows.segment_tail import NewRows

    Row = dict[str, Any]

__all__ = ["COUNTED_TABLES", "HostCounts"]

#: The tables whose rows are counted.
COUNTED_TABLES = (
    *MEASUREMENT_TABLES,
    *MESSAGE_POINT_TABLES,
    "actors",
    "dropped",
    "failures",
    "rows",
)
_DROPPED_FAMILIES = ("messages", "lifecycle", "logs", "spans", "metrics", "rows")
_DROPPED_REASONS = ("ring", "space", "disk", "size")
_ACTOR_NAMES_MAX = 10_000


class _ProcState:
    """The state that is kept for a process until it exits."""

    def __init__(self, proc: str, identity: ProcIdentity) -> None:
        self.proc = proc
        self.labels = (("mesh", identity.mesh_name), ("rank", str(identity.rank)))
        self.messages = MessagePoints()
        self.actor_names: dict[int, str] = {}
        #: Data points of actors whose start was not yet read; they wait for one round.
        self.waiting: list[Point] = []
        self.cpu_s = 0.0


class HostCounts:
    """The counts of a host; it is stored with pickle.

    Args:
        series_max: The limit of `HostSeries`.

    Attributes:
        series: The series.
        dropped: The number of events that are missing from the tables, by family and reason.
        segments_missed: The number of files that were evicted before they were read.
    """

    def __init__(self, series_max: int) -> None:
        self.series: HostSeries = HostSeries(series_max)
        # A counter that exists before its first event has a rate at that event.
        self.dropped: dict[tuple[str, str], int] = {
            (family, reason): 0 for family in _DROPPED_FAMILIES for reason in _DROPPED_REASONS
        }
        self.segments_missed: int = 0
        self._procs: dict[str, _ProcState] = {}
        self._open_hangs: list[Row] = []

    def add(self, new_rows: Sequence[NewRows]) -> None:
        """Count new rows."""
        late = [(state, state.waiting) for state in self._procs.values() if state.waiting]
        for state, _ in late:
            state.waiting = []
        for one in new_rows:
            self._add_rows(self._state(one.folder), one.tables)
        for state, points in late:
            for point in points:
                self._add_measured(state, point)
        for one in new_rows:
            if one.is_over:
                self._end(self._state(one.folder))

    def add_cpu(self, folders: Sequence[ProcFolder]) -> None:
        """Count the CPU time that processes have used since the last call."""
        for folder, row in zip(folders, proc_rows(folders), strict=True):
            if row["cpu_s"] is not None:
                state = self._state(folder)
                used_s = max(row["cpu_s"] - state.cpu_s, 0.0)
                state.cpu_s += used_s
                self.series.add(CPU, state.labels, used_s)

    def open_hang_counts(self) -> dict[str, int]:
        """Return the number of ranks that keep others waiting now, by kind."""
        return dict(Counter(row["kind"] for row in self._open_hangs))

    def _state(self, folder: ProcFolder) -> _ProcState:
        proc = folder.path.name
        if proc not in self._procs:
            self._procs[proc] = _ProcState(proc, folder.identity)
        return self._procs[proc]

    def _add_rows(self, state: _ProcState, tables: Mapping[str, list[Row]]) -> None:
        for row in tables["actors"]:
            if len(state.actor_names) < _ACTOR_NAMES_MAX:
                state.actor_names[row["id"]] = row["display_name"]
        for point in measured_points(tables):
            if point.actor_id is None or point.actor_id in state.actor_names:
                self._add_measured(state, point)
            else:
                state.waiting.append(point)
        for point in state.messages.points_of(tables):
            self._add_derived(state, point)
        for row in tables["failures"]:
            labels = (("mesh", row["mesh"]), ("kind", row["kind"]))
            self.series.add(FAILURES, labels, 1)
        for row in tables["dropped"]:
            key = row["family"], row["reason"]
            self.dropped[key] = self.dropped.get(key, 0) + row["events"]
        hangs = [
            json.loads(row["row_json"]) for row in tables["rows"] if row["table_name"] == HANGS
        ]
        if hangs:
            # The latest row comes first.
            self._open_hangs = open_hangs([*reversed(hangs), *reversed(self._open_hangs)])

    def _add_derived(self, state: _ProcState, point: Point) -> None:
        head = DERIVED.get(point.name)
        if head is None:
            # The length of queues is read from the actors themselves.
            return
        names = (("endpoint", "mesh.endpoint"), ("error_type", "error.type"))
        found = [(label, point.attributes.get(attribute)) for label, attribute in names]
        labels = *state.labels, *((label, value) for label, value in found if value is not None)
        self._add_point(state, head, labels, point)

    def _add_measured(self, state: _ProcState, point: Point) -> None:
        labels: Labels = state.labels
        if point.actor_id is not None:
            labels = (*labels, ("actor", state.actor_names.get(point.actor_id, "")))
        self._add_point(state, head_of(point), labels + attribute_labels(point.attributes), point)

    def _add_point(self, state: _ProcState, head: FamilyHead, labels: Labels, point: Point) -> None:
        if isinstance(point, HistogramPoint):
            value = HistogramValue(point.bounds, point.bucket_counts, point.sum)
            self.series.add_histogram(head, labels, value)
            return
        assert isinstance(point, NumberPoint), "there are two kinds"
        if point.is_monotonic:
            self.series.add(head, labels, point.value)
        elif point.is_sum:
            self.series.add_level(head, labels, state.proc, point.at_us, point.value)
        else:
            self.series.set(head, labels, state.proc, point.at_us, point.value)

    def _end(self, state: _ProcState) -> None:
        for point in state.waiting:
            self._add_measured(state, point)
        self.series.remove_gauges(state.proc)
        self._procs.pop(state.proc, None)
