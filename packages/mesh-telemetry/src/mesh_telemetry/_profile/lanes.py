"""Slices on tracks: where one goes, so that those of a track lie within each other or apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_telemetry._profile.perfetto import PerfettoWriter, Value

__all__ = ["Lane", "Lanes", "Slice"]


class Slice:
    """Something that takes time.

    Attributes:
        name: What it is called.
        category: What kind of thing it is.
        begin_ns: When it begins, in nanoseconds since the epoch.
        end_ns: When it ends; None while that is not known.
        is_message: Whether spans that name no other lie in it.
        lane: Where it was put.
        said_last: What is known of it at its end.
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
        """Says when it ends."""
        self.end_ns = max(time_ns, self.begin_ns)

    def is_over(self, time_ns: int) -> bool:
        """Says whether it ends at that time or before."""
        return self.end_ns is not None and self.end_ns <= time_ns


class Lane:
    """One track, with the slices that are open there, the innermost last."""

    def __init__(self, writer: PerfettoWriter, track: int) -> None:
        self.track = track
        self.open: list[Slice] = []
        self._writer = writer

    def settle(self, time_ns: int, keep: Slice | None = None) -> None:
        """Ends what is over, from the innermost on, as far as a slice that is to be kept."""
        while self.open and self.open[-1] is not keep and self.open[-1].is_over(time_ns):
            ended = self.open.pop()
            assert ended.end_ns is not None, "it is over"
            self._writer.close(self.track, ended.end_ns, ended.said_last)

    def put(self, one: Slice, arguments: dict[str, Value], flow: int | None) -> None:
        """Opens a slice within what is open."""
        one.lane = self
        self.open.append(one)
        self._writer.open(self.track, one.begin_ns, one.name, one.category, arguments, flow)


class Lanes:
    """The tracks of one actor: as many as it takes. The first is for messages before all else.

    Args:
        writer: Takes the packets.
        new_track: Makes the track of a lane, by its place among them.
        has_messages: Whether the first lane is kept free for messages.
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
        """The one on which moments are marked."""
        return self._lane(0)

    def put_message(self, one: Slice, arguments: dict[str, Value], flow: int | None) -> None:
        """Puts a message that is served where none is served at the time."""
        self._idle(one.begin_ns, 0).put(one, arguments, flow)

    def put_span(self, one: Slice, parent: Slice | None, arguments: dict[str, Value]) -> None:
        """Puts a span into its parent, or the message that is served, if it ends within."""
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
        """Ends what is over."""
        for lane in self._lanes:
            lane.settle(time_ns)

    def end_all(self, time_ns: int, said: dict[str, Value]) -> None:
        """Ends what is open: nothing runs there any more."""
        for lane in self._lanes:
            for one in lane.open:
                if one.end_ns is None or one.end_ns > time_ns:
                    one.end(time_ns)
                    one.said_last = said
            lane.settle(time_ns)

    def _serving(self, one: Slice) -> Lane | None:
        """Finds the message that a span must be in: the only one that is served."""
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
    """Says whether one is known to end within another."""
    return inner.end_ns is not None and (outer.end_ns is None or inner.end_ns <= outer.end_ns)
