"""Placement of slices on tracks, so that slices of a track are either nested or disjoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_telemetry._profile.perfetto import PerfettoWriter, Value

__all__ = ["Lane", "Lanes", "Slice"]


class Slice:
    """An activity with a duration.

    Attributes:
        name: Its name.
        category: Its category.
        begin_ns: When it begins, in nanoseconds since the epoch.
        end_ns: When it ends; None while that is unknown.
        is_message: Whether spans without a parent are placed inside it.
        lane: The lane that it was placed on.
        said_last: Arguments that are added at its end.
    """

    __slots__ = ("begin_ns", "category", "end_ns", "is_message", "lane", "name", "said_last")

    def __init__(
        self,
        name: str,
        category: str,
        begin_ns: int,
        end_ns: int | None,
        *,
        is_message: bool = False,
    ) -> None:
        self.name = name
        self.category = category
        self.begin_ns = begin_ns
        self.end_ns = end_ns if end_ns is None else max(end_ns, begin_ns)
        self.is_message = is_message
        self.lane: Lane | None = None
        self.said_last: dict[str, Value] = {}

    def end(self, time_ns: int) -> None:
        """Set the end."""
        self.end_ns = max(time_ns, self.begin_ns)

    def is_over(self, time_ns: int) -> bool:
        """Return whether it ends at or before a time."""
        return self.end_ns is not None and self.end_ns <= time_ns


class Lane:
    """One track with its open slices, innermost last."""

    def __init__(self, writer: PerfettoWriter, track: int) -> None:
        self.track = track
        self.open: list[Slice] = []
        self._writer = writer

    def settle(self, time_ns: int, keep: Slice | None = None) -> None:
        """Close the slices that have ended, innermost first, up to a slice that must stay open."""
        while self.open and self.open[-1] is not keep and self.open[-1].is_over(time_ns):
            ended = self.open.pop()
            assert ended.end_ns is not None, "it is over"
            self._writer.close(self.track, ended.end_ns, ended.said_last)

    def put(self, one: Slice, arguments: dict[str, Value], flow: int | None) -> None:
        """Open a slice inside the open slices."""
        one.lane = self
        self.open.append(one)
        self._writer.open(self.track, one.begin_ns, one.name, one.category, arguments, flow)


class Lanes:
    """The tracks of one actor, created as needed. The first one is reserved for messages.

    Args:
        writer: Receives the packets.
        new_track: Creates the track of a lane with a given index.
        has_messages: Whether the first lane is reserved for messages.
    """

    def __init__(
        self, writer: PerfettoWriter, new_track: Callable[[int], int], *, has_messages: bool
    ) -> None:
        self._writer = writer
        self._new_track = new_track
        self._first_free = 1 if has_messages else 0
        self._lanes: list[Lane] = []

    @property
    def first(self) -> Lane:
        """The lane for instant events."""
        return self._lane(0)

    def put_message(self, one: Slice, arguments: dict[str, Value], flow: int | None) -> None:
        """Place a message on a lane on which no other message is being served."""
        self._idle(one.begin_ns, 0).put(one, arguments, flow)

    def put_span(self, one: Slice, parent: Slice | None, arguments: dict[str, Value]) -> None:
        """Place a span inside its parent or the message being served, if it ends within it."""
        lane = None if parent is None else parent.lane
        if lane is not None and lane in self._lanes:
            lane.settle(one.begin_ns, keep=parent)
            if lane.open and lane.open[-1] is parent and _fits(one, parent):
                lane.put(one, arguments, None)
                return
        elif parent is None and (lane := self._serving(one)) is not None:
            lane.put(one, arguments, None)
            return
        self._idle(one.begin_ns, self._first_free).put(one, arguments, None)

    def settle(self, time_ns: int) -> None:
        """Close the slices that have ended."""
        for lane in self._lanes:
            lane.settle(time_ns)

    def end_all(self, time_ns: int, said: dict[str, Value]) -> None:
        """Close all open slices because the process has ended."""
        for lane in self._lanes:
            for one in lane.open:
                if one.end_ns is None or one.end_ns > time_ns:
                    one.end(time_ns)
                    one.said_last = said
            lane.settle(time_ns)

    def _serving(self, one: Slice) -> Lane | None:
        """Return the lane of the message that must contain a span: the only one being served."""
        found = []
        for lane in self._lanes:
            outermost = lane.open[0] if lane.open else None
            if outermost is None or not outermost.is_message:
                continue
            lane.settle(one.begin_ns, keep=outermost)
            if outermost.end_ns is None or outermost.end_ns >= one.begin_ns:
                found.append(lane)
        if len(found) == 1 and len(found[0].open) == 1 and _fits(one, found[0].open[0]):
            return found[0]
        return None

    def _idle(self, time_ns: int, start: int) -> Lane:
        for at in range(start, len(self._lanes)):
            self._lanes[at].settle(time_ns)
            if not self._lanes[at].open:
                return self._lanes[at]
        return self._lane(max(start, len(self._lanes)))

    def _lane(self, at: int) -> Lane:
        while len(self._lanes) <= at:
            self._lanes.append(Lane(self._writer, self._new_track(len(self._lanes))))
        return self._lanes[at]


def _fits(inner: Slice, outer: Slice) -> bool:
    """Return whether a slice is known to end within another one."""
    return inner.end_ns is not None and (outer.end_ns is None or inner.end_ns <= outer.end_ns)
