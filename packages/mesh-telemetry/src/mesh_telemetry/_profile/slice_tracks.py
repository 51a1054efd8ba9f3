"""Placement of slices on tracks, so that slices of a track are either nested or disjoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_telemetry._profile.perfetto import PerfettoWriter, Value

__all__ = ["Slice", "SliceTrack", "SliceTracks"]


class Slice:
    """An activity with a duration.

    Attributes:
        name: Its name.
        category: Its category.
        begin_ns: When it begins, in nanoseconds since the epoch.
        end_ns: When it ends; None while that is unknown.
        is_message: Whether spans without a parent are placed inside it.
        track: The track that it was placed on.
        end_arguments: Arguments that are added at its end.
    """

    __slots__ = ("begin_ns", "category", "end_arguments", "end_ns", "is_message", "name", "track")

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
        self.track: SliceTrack | None = None
        self.end_arguments: dict[str, Value] = {}

    def end(self, time_ns: int) -> None:
        """Set the end."""
        self.end_ns = max(time_ns, self.begin_ns)

    def is_over(self, time_ns: int) -> bool:
        """Return whether it ends at or before a time."""
        return self.end_ns is not None and self.end_ns <= time_ns


class SliceTrack:
    """A track with its open slices, innermost last."""

    def __init__(self, writer: PerfettoWriter, track_id: int) -> None:
        self.id = track_id
        self.open: list[Slice] = []
        self._writer = writer

    def settle(self, time_ns: int, keep: Slice | None = None) -> None:
        """Close the slices that have ended, innermost first, up to a slice that must stay open."""
        while self.open and self.open[-1] is not keep and self.open[-1].is_over(time_ns):
            ended = self.open.pop()
            assert ended.end_ns is not None, "it is over"
            self._writer.close(self.id, ended.end_ns, ended.end_arguments)

    def add(self, one: Slice, arguments: dict[str, Value], flow: int | None) -> None:
        """Open a slice inside the open slices."""
        one.track = self
        self.open.append(one)
        self._writer.open(self.id, one.begin_ns, one.name, one.category, arguments, flow)


class SliceTracks:
    """The tracks of one actor, created as needed. The first one is reserved for messages.

    Args:
        writer: Receives the packets.
        new_track: Creates the track with a given index in the trace.
        has_messages: Whether the first track is reserved for messages.
    """

    def __init__(
        self, writer: PerfettoWriter, new_track: Callable[[int], int], *, has_messages: bool
    ) -> None:
        self._writer = writer
        self._new_track = new_track
        self._first_free = 1 if has_messages else 0
        self._tracks: list[SliceTrack] = []

    @property
    def first(self) -> SliceTrack:
        """The track for instant events."""
        return self._track(0)

    def add_message(self, one: Slice, arguments: dict[str, Value], flow: int | None) -> None:
        """Add a message to a track on which no other message is being served."""
        self._idle_track(one.begin_ns, 0).add(one, arguments, flow)

    def add_span(self, one: Slice, parent: Slice | None, arguments: dict[str, Value]) -> None:
        """Add a span inside its parent or the message being served, if it ends within it."""
        track = None if parent is None else parent.track
        if track is not None and track in self._tracks:
            track.settle(one.begin_ns, keep=parent)
            if track.open and track.open[-1] is parent and _fits(one, parent):
                track.add(one, arguments, None)
                return
        elif parent is None and (track := self._track_being_served(one)) is not None:
            track.add(one, arguments, None)
            return
        self._idle_track(one.begin_ns, self._first_free).add(one, arguments, None)

    def settle(self, time_ns: int) -> None:
        """Close the slices that have ended."""
        for track in self._tracks:
            track.settle(time_ns)

    def end_all(self, time_ns: int, arguments: dict[str, Value]) -> None:
        """Close all open slices because the process has ended."""
        for track in self._tracks:
            for one in track.open:
                if one.end_ns is None or one.end_ns > time_ns:
                    one.end(time_ns)
                    one.end_arguments = arguments
            track.settle(time_ns)

    def _track_being_served(self, one: Slice) -> SliceTrack | None:
        """Return the track of the message that must contain a span: the only one being served."""
        found = []
        for track in self._tracks:
            outermost = track.open[0] if track.open else None
            if outermost is None or not outermost.is_message:
                continue
            track.settle(one.begin_ns, keep=outermost)
            if outermost.end_ns is None or outermost.end_ns >= one.begin_ns:
                found.append(track)
        if len(found) == 1 and len(found[0].open) == 1 and _fits(one, found[0].open[0]):
            return found[0]
        return None

    def _idle_track(self, time_ns: int, start: int) -> SliceTrack:
        for at in range(start, len(self._tracks)):
            self._tracks[at].settle(time_ns)
            if not self._tracks[at].open:
                return self._tracks[at]
        return self._track(max(start, len(self._tracks)))

    def _track(self, at: int) -> SliceTrack:
        while len(self._tracks) <= at:
            self._tracks.append(SliceTrack(self._writer, self._new_track(len(self._tracks))))
        return self._tracks[at]


def _fits(inner: Slice, outer: Slice) -> bool:
    """Return whether a slice is known to end within another one."""
    return inner.end_ns is not None and (outer.end_ns is None or inner.end_ns <= outer.end_ns)
