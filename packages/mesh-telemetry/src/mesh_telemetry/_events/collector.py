"""The actor that has its process recorded, and those that are spawned from there."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core import Actor, ActorFailed, MeshError, context, endpoint
from mesh_core.spi import (
    host_agents,
    host_numbers,
    is_stopped,
    register_proc_mesh_spawn_callback,
    station,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import HostMesh, MeshFailure, ProcMesh
    from mesh_telemetry._events.recording import Recording
    from mesh_telemetry._keeper import Keeper

__all__ = ["COLLECTOR_NAME", "Collector", "is_ours"]

COLLECTOR_NAME = "mesh-telemetry-collector"
_log = logging.getLogger("mesh_telemetry")
# For how long what was started again may be told of before the loss of what was there.
_BACK_S = 10.0

#: Set while telemetry spawns processes of its own, in which nothing is recorded.
is_ours: contextvars.ContextVar[bool] = contextvars.ContextVar("mesh_telemetry.ours", default=False)


class _Watched:
    """Processes that are recorded, by collectors that this one owns."""

    def __init__(self, procs: ProcMesh, collectors: Collector) -> None:
        self.procs = procs
        self.collectors = collectors
        self.lost: set[int] = set()


class Collector(Actor):
    """Records its process as long as it lives.

    It owns the collectors of all processes that are spawned from here, so that whoever spawned
    those hears nothing of them. Where one is lost it comes back with its process.

    Args:
        recording: Of which run.
        keeper: Who has to know which hosts there are.
    """

    def __init__(self, recording: Recording, keeper: Keeper) -> None:
        self._recording = recording
        self._keeper = keeper
        self._is_over = False
        self._turn = threading.Lock()
        self._watched: list[_Watched] = []
        self._told = {station().host}
        self._restarted_at = -_BACK_S
        # What is spawned within it is this actor's, whoever asks for it.
        self._place = contextvars.copy_context()
        recording.join(self._on_restarted, context().actor_instance.actor_id.port)
        self._unregister: Callable[[], None] = register_proc_mesh_spawn_callback(self._on_spawn)

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Notes which processes are recorded no more; they are again when they are replaced."""
        with self._turn:
            for watched in self._watched:
                if any(mesh == watched.collectors for mesh in failure.meshes):
                    watched.lost.add(failure.rank or 0)
            is_here = isinstance(failure.error, ActorFailed)
            is_back = time.monotonic() - self._restarted_at < _BACK_S
        if is_here:
            _log.warning("a process is not recorded: %s", failure.error)
        elif is_back:
            self._bring_back()
        return True

    @endpoint
    def watch(self, procs: ProcMesh) -> None:
        """Records processes that were there before."""
        self._begin(procs)

    def __cleanup__(self, error: Exception | None) -> None:
        self._unregister()
        with self._turn:
            self._watched.clear()
            is_over, self._is_over = self._is_over, True
        if not is_over:
            self._recording.leave()

    def _on_spawn(self, procs: ProcMesh) -> None:
        """Records what is spawned in this process, before anything runs there."""
        if is_ours.get() or self._is_over:
            return
        # The spawner is not to fail of this; its processes fail by themselves, if they do.
        with suppress(MeshError):
            self._place.copy().run(self._begin, procs)

    def _begin(self, procs: ProcMesh) -> None:
        with self._turn:
            if any(watched.procs == procs for watched in self._watched):
                return
        self._tell_hosts(procs.host_mesh)
        collectors = procs.spawn(COLLECTOR_NAME, Collector, self._recording, self._keeper)
        with self._turn:
            self._prune()
            self._watched.append(_Watched(procs, collectors))

    def _prune(self) -> None:
        """Forgets processes that are no more, and will not come back."""
        self._watched = [one for one in self._watched if not is_stopped(one.procs)]

    def _tell_hosts(self, hosts: HostMesh) -> None:
        """Has hosts looked after that this process has not had anything on before."""
        row = hosts.flatten("host")
        for at, number in enumerate(host_numbers(row)):
            if number in self._told:
                continue
            self._told.add(number)
            host = row.slice(host=at)
            # What processes print, and how they end, only that process is told of.
            host_agents(host).spawn(COLLECTOR_NAME, Collector, self._recording, self._keeper)
            self._keeper.seen.broadcast(host)

    def _on_restarted(self) -> None:
        with self._turn:
            self._restarted_at = time.monotonic()
        self._place.copy().run(self._bring_back)

    def _bring_back(self) -> None:
        """Starts collectors again in processes that may have been replaced."""
        with self._turn:
            found = [(one, sorted(one.lost)) for one in self._watched if one.lost]
            for watched, _ in found:
                watched.lost.clear()
            self._prune()
        for watched, ranks in found:
            for rank in ranks:
                with suppress(MeshError, IndexError):
                    member = watched.procs.flatten("rank").slice(rank=slice(rank, rank + 1))
                    again = member.spawn(COLLECTOR_NAME, Collector, self._recording, self._keeper)
                    with self._turn:
                        self._watched.append(_Watched(member, again))
                    # Another machine may be in the place of the one that was told of.
                    self._told -= set(host_numbers(member)) - {station().host}
                    self._tell_hosts(member.host_mesh)
