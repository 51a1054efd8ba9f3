"""The tracks of a trace: processes, their actors, and their other events."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mesh_telemetry._profile.slice_tracks import SliceTracks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh_telemetry._profile.clock_offsets import ClockOffset
    from mesh_telemetry._profile.perfetto import PerfettoWriter, Value

__all__ = ["ActorTracks", "ProfileTracks"]

# Above all process ids of Linux, because processes of different hosts may have the same one.
_PID_FIRST = 1 << 23
_TID_FIRST = 1 << 24


class ActorTracks:
    """The tracks of an actor.

    Attributes:
        actor_id: The actor, an `actors.id`.
        name: The name of its mesh.
        tracks: The tracks of its messages and spans.
    """

    def __init__(
        self, tracks: ProfileTracks, writer: PerfettoWriter, actor_id: int, proc: str, name: str
    ) -> None:
        self.actor_id = actor_id
        self.name = name.partition("[")[0]
        self._proc = proc
        self._shown = name
        self._tracks = tracks
        self._writer = writer
        self._queue_len = 0
        new_track = partial(tracks.new_slice_track, proc, name)
        self.tracks = SliceTracks(writer, new_track, has_messages=True)

    def queue_changed(self, at_ns: int, change: int) -> None:
        """Update the counter of waiting messages."""
        self._queue_len += change
        track = self._tracks.counter(self._proc, f"queue of {self._shown}", "messages")
        self._writer.count(track, at_ns, self._queue_len)


class ProfileTracks:
    """All tracks of a trace, created when they are first used.

    Args:
        writer: Receives the packets.
        procs: Name, mesh, rank, pid and host of each process.
        actors: Id, process, mesh, rank and name of each actor.
        meshes: Id and name of each mesh.
        clocks: The clock offsets of hosts.
    """

    def __init__(
        self,
        writer: PerfettoWriter,
        procs: Sequence[tuple[Any, ...]],
        actors: Sequence[tuple[Any, ...]],
        meshes: Sequence[tuple[Any, ...]],
        clocks: Mapping[int, ClockOffset],
    ) -> None:
        self._writer = writer
        self._ahead_us = {str(host): clock.offset_us for host, clock in clocks.items()}
        self._known_procs = {row[0]: row[1:] for row in procs}
        self._known_actors = {row[0]: row[1:] for row in actors}
        self._actor_ids = {(row[1], row[2]): row[0] for row in actors}
        self._meshes = dict(row[:2] for row in meshes) | {row[2]: row[4] for row in actors}
        self._pids: dict[str, int] = {}
        self._processes: dict[str, int] = {}
        self._actors: dict[int, ActorTracks] = {}
        self._outside_actors: dict[str, SliceTracks] = {}
        self._named: dict[tuple[str, str], int] = {}
        self._counters: dict[tuple[str, str], int] = {}
        self._last_tid = _TID_FIRST

    def ns(self, proc: str, at_us: int) -> int:
        """Convert a time of a process to nanoseconds by the clock of the first host."""
        return (at_us - self._ahead_us.get(proc.partition(".")[0], 0)) * 1000

    def actor(self, actor_id: int) -> ActorTracks | None:
        """Return the tracks of an actor; None for other receivers, such as channels."""
        found = self._actors.get(actor_id)
        if found is None and actor_id in self._known_actors:
            proc, _, rank, name = self._known_actors[actor_id]
            found = ActorTracks(self, self._writer, actor_id, proc, f"{name}[{rank}]")
            self._actors[actor_id] = found
        return found

    def actor_of(self, proc: str, mesh_id: int) -> ActorTracks | None:
        """Return the tracks of the actor of a mesh in a process."""
        actor_id = self._actor_ids.get((proc, mesh_id))
        return None if actor_id is None else self.actor(actor_id)

    def mesh_name(self, mesh_id: int) -> str | None:
        """Return the name of a mesh; None for a channel."""
        return self._meshes.get(mesh_id)

    def outside_actors(self, proc: str) -> SliceTracks:
        """Return the tracks of a process for activity outside actors."""
        found = self._outside_actors.get(proc)
        if found is None:
            is_program = self._known_procs.get(proc, ("",))[0] == "root"
            name = "program" if is_program else "outside actors"
            new_track = partial(self.new_slice_track, proc, name)
            found = self._outside_actors[proc] = SliceTracks(
                self._writer, new_track, has_messages=False
            )
        return found

    def named(self, proc: str, name: str) -> int:
        """Return another track of a process."""
        found = self._named.get((proc, name))
        if found is None:
            found = self._named[proc, name] = self._writer.track(self._process(proc), name)
        return found

    def counter(self, proc: str, name: str, unit: str) -> int:
        """Return a counter track of a process."""
        found = self._counters.get((proc, name))
        if found is None:
            found = self._writer.counter(self._process(proc), name, unit)
            self._counters[proc, name] = found
        return found

    def new_slice_track(self, proc: str, name: str, at: int) -> int:
        """Create a track for slices of a process, and return its id."""
        process = self._process(proc)
        if at:
            return self._writer.track(process, f"{name} ({at + 1})")
        self._last_tid += 1
        return self._writer.thread(self._pids[proc], self._last_tid, name)

    def settle(self, until_us: int) -> None:
        """Close the slices that have ended by a time."""
        for actor_id, actor in self._actors.items():
            actor.tracks.settle(self.ns(self._known_actors[actor_id][0], until_us))
        for proc, tracks in self._outside_actors.items():
            tracks.settle(self.ns(proc, until_us))

    def end_all(self, proc: str, at_ns: int, arguments: dict[str, Value]) -> None:
        """Close all slices of a process."""
        for actor_id, actor in self._actors.items():
            if self._known_actors[actor_id][0] == proc:
                actor.tracks.end_all(at_ns, arguments)
        if proc in self._outside_actors:
            self._outside_actors[proc].end_all(at_ns, arguments)

    def _process(self, proc: str) -> int:
        found = self._processes.get(proc)
        if found is None:
            mesh, rank, pid, host = self._known_procs.get(proc, ("process", "?", 0, "?"))
            if not pid or pid in self._pids.values():
                pid = _PID_FIRST + len(self._pids)
            self._pids[proc] = pid
            name = f"{mesh}[{rank}] {proc} on {host}"
            found = self._processes[proc] = self._writer.process(pid, name)
        return found
