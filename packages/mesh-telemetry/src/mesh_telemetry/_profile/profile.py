"""A trace of the actors of a program and the messages between them."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from mesh_telemetry._profile.clock_offsets import clock_offsets
from mesh_telemetry._profile.perfetto import PerfettoWriter
from mesh_telemetry._profile.slice_tracks import Slice, SliceTrack
from mesh_telemetry._profile.tracks import ProfileTracks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mesh_telemetry._profile.clock_offsets import ClockOffset
    from mesh_telemetry._profile.perfetto import Value
    from mesh_telemetry._profile.rows import ProfileRows, Window
    from mesh_telemetry._profile.tracks import ActorTracks

__all__ = ["ProfileTrace"]

_ENDS = ("complete", "failed")
_CALLER_ENDS = ("returned", "cancelled")
# Limits for messages that are in flight, and may never arrive.
_PENDING_MAX = 200_000
_CASTS_MAX = 10_000


class _QueuedMessage(NamedTuple):
    at_us: int
    endpoint: str | None
    length: int


class _TraceBuilder:
    """Processes rows ordered by time, and writes the trace."""

    def __init__(self, writer: PerfettoWriter, tracks: ProfileTracks) -> None:
        self._writer = writer
        self._tracks = tracks
        self._queued: OrderedDict[int, _QueuedMessage] = OrderedDict()
        self._casts: dict[int, deque[_QueuedMessage]] = defaultdict(
            lambda: deque(maxlen=_CASTS_MAX)
        )
        self._sent: OrderedDict[int, tuple[SliceTrack, str]] = OrderedDict()
        self._open: dict[int, Slice] = {}
        self._open_spans: dict[int, Slice] = {}
        self._ends: dict[int, tuple[int, str, int]] = {}
        self._span_ends: dict[int, tuple[int, bool]] = {}
        self._totals: dict[int, float] = {}
        self.message_count = self.span_count = 0

    def take(self, window: Window) -> None:
        """Write the events of one window."""
        rows = window.rows
        self._record_ends(rows["message_status_events"], rows["span_events"])
        # Among equal times, rows are processed in this order.
        kinds: dict[str, Callable[[Any], None]] = {
            "messages": self._receive,
            "message_status_events": self._change,
            "spans": self._span,
            "sent_messages": self._send,
            "logs": self._log,
            "metric_gauges": self._gauge,
            "metric_sums": self._sum,
            "metric_histograms": self._histogram,
            "failures": self._fail,
        }
        steps = [
            (row[0], order, step, row)
            for order, (table, step) in enumerate(kinds.items())
            for row in rows[table]
        ]
        steps.sort(key=lambda one: one[:2])
        for _, _, step, row in steps:
            step(row)
        self._settle(window.until_us)

    def _record_ends(self, statuses: list[Any], closes: list[Any]) -> None:
        """Determine the ends of messages and spans before their starts are processed."""
        self._ends = {}
        for at_us, number, proc, _, status, code in statuses:
            if status in _ENDS and number is not None:
                self._ends[number] = (at_us, status, code)
                if (one := self._open.pop(number, None)) is not None:
                    one.end(self._tracks.ns(proc, at_us))
                    one.end_arguments = _result(status, code)
        self._span_ends = {}
        for at_us, number, proc, is_error in closes:
            self._span_ends[number] = (at_us, is_error)
            if (one := self._open_spans.pop(number, None)) is not None:
                one.end(self._tracks.ns(proc, at_us))
                one.end_arguments = {"is_error": True} if is_error else {}

    def _settle(self, until_us: int) -> None:
        self._tracks.settle(until_us)
        self._open_spans = {
            number: one for number, one in self._open_spans.items() if one.end_ns is None
        }

    def _receive(self, row: tuple[Any, ...]) -> None:
        at_us, number, proc, actor_id, call, length, endpoint = row
        actor = self._tracks.actor(actor_id)
        if actor is None:
            return
        queued = _QueuedMessage(at_us, endpoint, length)
        if call is None:
            self._casts[actor_id].append(queued)
        else:
            _remember(self._queued, number, queued)
        actor.queue_changed(self._tracks.ns(proc, at_us), +1)

    def _change(self, row: tuple[Any, ...]) -> None:
        at_us, number, proc, mesh_id, status, code = row
        if status in _CALLER_ENDS:
            self._return(at_us, number, proc, status, code)
            return
        actor = self._tracks.actor_of(proc, mesh_id)
        if actor is None or status in _ENDS:
            return
        at_ns = self._tracks.ns(proc, at_us)
        queued = self._dequeue(actor, number)
        if queued is not None:
            actor.queue_changed(at_ns, -1)
        if status == "refused":
            arguments: dict[str, Value] = {"code": code}
            self._writer.instant(
                actor.tracks.first.id, at_ns, "refused", "message", arguments, number, is_last=True
            )
        elif status == "active":
            self._serve(actor, at_us, at_ns, number, proc, queued)

    def _serve(
        self,
        actor: ActorTracks,
        at_us: int,
        at_ns: int,
        number: int | None,
        proc: str,
        queued: _QueuedMessage | None,
    ) -> None:
        self.message_count += 1
        arguments: dict[str, Value] = {}
        name = actor.name
        if queued is not None:
            name = queued.endpoint or name
            arguments = {"queue_us": at_us - queued.at_us, "bytes": queued.length}
        if number is None:
            # The end of a message that expects no reply is not recorded.
            arguments["reply"] = "not requested"
            one = Slice(name, "message", at_ns, at_ns, is_message=True)
        else:
            arguments["message"] = str(number)
            one = Slice(name, "message", at_ns, None, is_message=True)
            end = self._ends.get(number)
            if end is None:
                self._open[number] = one
            else:
                one.end(self._tracks.ns(proc, end[0]))
                one.end_arguments = _result(end[1], end[2])
        actor.tracks.add_message(one, arguments, number)

    def _dequeue(self, actor: ActorTracks, number: int | None) -> _QueuedMessage | None:
        if number is not None:
            return self._queued.pop(number, None)
        casts = self._casts.get(actor.actor_id)
        return casts.popleft() if casts else None

    def _span(self, row: tuple[Any, ...]) -> None:
        at_us, number, proc, actor_id, parent_id, name, fields = row
        self.span_count += 1
        actor = None if actor_id is None else self._tracks.actor(actor_id)
        tracks = actor.tracks if actor is not None else self._tracks.outside_actors(proc)
        one = Slice(name, "span", self._tracks.ns(proc, at_us), None)
        end = self._span_ends.get(number)
        if end is not None:
            one.end(self._tracks.ns(proc, end[0]))
            one.end_arguments = {"is_error": True} if end[1] else {}
        # Ended spans are removed at the end of the window, because nested spans begin before that.
        self._open_spans[number] = one
        parent = None if parent_id is None else self._open_spans.get(parent_id)
        tracks.add_span(one, parent, {} if fields == "{}" else {"fields": fields})

    def _send(self, row: tuple[Any, ...]) -> None:
        at_us, number, proc, mesh_id, rank, call, length, sender_id, endpoint = row
        mesh = self._tracks.mesh_name(mesh_id)
        if mesh is None:
            return
        sender = None if sender_id is None else self._tracks.actor(sender_id)
        track = (self._tracks.outside_actors(proc) if sender is None else sender.tracks).first
        to = f"{endpoint or mesh}"
        arguments: dict[str, Value] = {"to": f"{mesh}[{rank}]", "bytes": length}
        flow = None if call is None else number
        at_ns = self._tracks.ns(proc, at_us)
        self._writer.instant(track.id, at_ns, f"send {to}", "message", arguments, flow)
        if call is not None:
            _remember(self._sent, number, (track, to))

    def _return(self, at_us: int, number: int | None, proc: str, status: str, code: int) -> None:
        sent = None if number is None else self._sent.pop(number, None)
        if sent is None:
            return
        track, to = sent
        name = f"{'reply' if status == 'returned' else 'cancel'} {to}"
        arguments = _result(status, code)
        at_ns = self._tracks.ns(proc, at_us)
        self._writer.instant(track.id, at_ns, name, "message", arguments, number, is_last=True)

    def _log(self, row: tuple[Any, ...]) -> None:
        at_us, proc, stream, line = row
        track = self._tracks.named(proc, "output")
        arguments = {"line": line}
        self._writer.instant(track, self._tracks.ns(proc, at_us), stream, "log", arguments)

    def _gauge(self, row: tuple[Any, ...]) -> None:
        at_us, proc, name, unit, attributes, real, whole = row
        self._count(proc, at_us, name, unit, attributes, real if whole is None else whole)

    def _sum(self, row: tuple[Any, ...]) -> None:
        at_us, proc, name, unit, attributes, real, whole = row
        track = self._tracks.counter(proc, _shown(name, attributes), unit)
        total = self._totals.get(track, 0) + (real if whole is None else whole)
        self._totals[track] = total
        self._writer.count(track, self._tracks.ns(proc, at_us), _bounded(total))

    def _histogram(self, row: tuple[Any, ...]) -> None:
        at_us, proc, name, unit, attributes, count, total = row
        if count:
            self._count(proc, at_us, f"{name} (mean)", unit, attributes, total / count)

    def _count(
        self, proc: str, at_us: int, name: str, unit: str, attributes: str, value: float
    ) -> None:
        track = self._tracks.counter(proc, _shown(name, attributes), unit)
        self._writer.count(track, self._tracks.ns(proc, at_us), _bounded(value))

    def _fail(self, row: tuple[Any, ...]) -> None:
        at_us, proc, kind, mesh_id, reason, cause = row
        at_ns = self._tracks.ns(proc, at_us)
        arguments: dict[str, Value] = {"reason": reason or ""}
        if cause:
            arguments["cause"] = cause
        actor = self._tracks.actor_of(proc, mesh_id) if kind == "actor" else None
        if actor is not None:
            track, name = actor.tracks.first.id, "the actor failed"
        else:
            track, name = self._tracks.named(proc, "failures"), "the process died"
            self._tracks.end_all(proc, at_ns, {"status": "the process died"})
        self._writer.instant(track, at_ns, name, "failure", arguments)


class ProfileTrace:
    """A trace of all recorded rows in a time range.

    Args:
        rows: The rows.

    Attributes:
        messages: The number of served messages that were written.
        spans: The number of spans of the program that were written.
    """

    def __init__(self, rows: ProfileRows) -> None:
        self._rows = rows
        self.messages = self.spans = 0

    def pieces(self) -> Iterator[bytes]:
        """Yield the trace in parts.

        Raises:
            TelemetryError: No host replied.
        """
        rows = self._rows
        made = bytearray()
        writer = PerfettoWriter(made.extend)
        writer.begin(rows.since_us * 1000)
        clocks = clock_offsets(rows.least_delays(), first=0)
        tracks = ProfileTracks(writer, rows.procs(), rows.actors(), rows.meshes(), clocks)
        profile = _TraceBuilder(writer, tracks)
        for window in rows.windows():
            profile.take(window)
            self.messages, self.spans = profile.message_count, profile.span_count
            yield bytes(made)
            made.clear()
        about = _about(rows, clocks)
        track = writer.track(0, "telemetry")
        writer.instant(track, rows.since_us * 1000, "about this trace", "telemetry", about)
        yield bytes(made)


def _about(rows: ProfileRows, clocks: dict[int, ClockOffset]) -> dict[str, Value]:
    """Return the arguments of the event `about this trace`."""
    about: dict[str, Value] = {"since_us": rows.since_us, "until_us": rows.until_us}
    for number, clock in sorted(clocks.items()):
        trip = f"the shortest round trip took {clock.round_trip_us} us"
        about[f"clock of host {number}"] = (
            f"ahead by {clock.offset_us} us, corrected: {trip}"
            if clock.offset_us
            else f"not corrected: {trip}"
        )
    return about | {f"host {host} is missing": why for host, why in sorted(rows.failed.items())}


def _result(status: str, code: int) -> dict[str, Value]:
    return {"status": status, "code": code} if code else {"status": status}


def _shown(name: str, attributes: str) -> str:
    return name if attributes == "{}" else f"{name} {attributes}"


def _bounded(value: float) -> float:
    """Convert integers to float if they do not fit into 64 bits."""
    return value if not isinstance(value, int) or abs(value) < 1 << 63 else float(value)


def _remember(known: OrderedDict[int, Any], number: int, value: Any) -> None:
    known[number] = value
    if len(known) > _PENDING_MAX:
        known.popitem(last=False)
