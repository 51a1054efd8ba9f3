"""The actor that has its process recorded, and those that are spawned from there."""

from __future__ import annotations

import contextvars
import itertools
import logging
import threading
import time
from contextlib import suppress
from functools import partial
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
    from typing import Any

    from mesh_core import Future, HostMesh, MeshFailure, ProcMesh
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
    """Processes that are recorded, by collectors that this one owns.

    Args:
        number: Its own among those of one collector.
        procs: The processes.
        collectors: What records them.
        whole: What was to be recorded first, of which these are a part that came back.
    """

    def __init__(
        self, number: int, procs: ProcMesh, collectors: Collector, whole: ProcMesh
    ) -> None:
        self.number = number
        self.procs = procs
        self.collectors = collectors
        self.whole = whole
        # Ranks that nothing records, and all that these collectors record no more.
        self.lost: set[int] = set()
        self.ended: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether these collectors are no more, and nothing is to take their place."""
        return is_stopped(self.procs) or (len(self.ended) == len(self.procs) and not self.lost)

    def lose(self, rank: int) -> None:
        """Notes that a collector is no more; who has its process next is in another of these."""
        if rank not in self.ended:
            self.ended.add(rank)
            self.lost.add(rank)

    def latest(self) -> list[Collector]:
        """Gives those in the place of which there are no others: they record, or say why not."""
        replaced = self.ended - self.lost
        if not replaced:
            return [self.collectors]
        row = self.collectors.flatten("rank")
        ranks = [rank for rank in range(len(row)) if rank not in replaced]
        return [row.slice(rank=slice(rank, rank + 1)) for rank in ranks]


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
        self._numbers = itertools.count()
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
                    # The rank is that in the first mesh which was hit.
                    watched.lose(0 if len(watched.collectors) == 1 else failure.rank or 0)
            is_here = isinstance(failure.error, ActorFailed)
            is_back = time.monotonic() - self._restarted_at < _BACK_S
        if is_here:
            _log.warning("a process is not recorded: %s", failure.error)
        elif is_back:
            self._bring_back()
        return True

    @endpoint
    def watch(self, procs: ProcMesh) -> list[tuple[int, Collector]]:
        """Records processes that were there before.

        Gives collectors that do so when they are initialized, and for `lost` what they belong to.
        """
        self._begin(procs)
        failures = self._bring_back(procs)
        if failures:
            raise failures[0]
        with self._turn:
            found = [one for one in self._watched if one.whole == procs]
            return [(one.number, each) for one in found for each in one.latest()]

    @endpoint
    def lost(self, lost: list[tuple[int, int]]) -> None:
        """Hears from who was told first which ranks of which collectors are no more."""
        with self._turn:
            for watched in self._watched:
                for number, rank in lost:
                    if number == watched.number:
                        watched.lose(rank)

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
            self._prune()
            if any(watched.whole == procs for watched in self._watched):
                return
        self._tell_hosts(procs.host_mesh)
        collectors = procs.spawn(COLLECTOR_NAME, Collector, self._recording, self._keeper)
        self._add(procs, collectors, procs)

    def _add(self, procs: ProcMesh, collectors: Collector, whole: ProcMesh) -> _Watched:
        with self._turn:
            added = _Watched(next(self._numbers), procs, collectors, whole)
            self._watched.append(added)
        return added

    def _prune(self) -> None:
        """Forgets what is no more, and will not come back."""
        self._watched = [one for one in self._watched if not one.is_over]

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

    def _bring_back(self, whole: ProcMesh | None = None) -> list[Exception]:
        """Starts collectors again in processes that may have been replaced: of some, or of all.

        Gives what went wrong; that is tried again the next time.
        """
        with self._turn:
            self._prune()
            found = [one for one in self._watched if whole is None or one.whole == whole]
            lost = [(one, rank) for one in found for rank in sorted(one.lost)]
            for one in found:
                one.lost.clear()
        failures: list[Exception] = []
        for watched, rank in lost:
            try:
                self._begin_again(watched, rank)
            except (MeshError, IndexError) as error:
                failures.append(error)
                with self._turn:
                    watched.lost.add(rank)
        return failures

    def _begin_again(self, watched: _Watched, rank: int) -> None:
        member = watched.procs.flatten("rank").slice(rank=slice(rank, rank + 1))
        began_at = time.monotonic()
        again = member.spawn(COLLECTOR_NAME, Collector, self._recording, self._keeper)
        added = self._add(member, again, watched.whole)
        again.initialized.add_done_callback(partial(self._look_at, added, began_at))
        # Another machine may be in the place of the one that was told of.
        self._told -= set(host_numbers(member)) - {station().host}
        self._tell_hosts(member.host_mesh)

    def _look_at(self, added: _Watched, began_at: float, begun: Future[Any]) -> None:
        """Notes what had not come back yet, and starts it again if it has meanwhile."""
        if begun.exception() is None:
            return
        with self._turn:
            added.lose(0)
            is_back = began_at < self._restarted_at
        if is_back and not self._is_over:
            # Not in the thread that has the answers of all.
            work = partial(self._place.copy().run, self._bring_back)
            threading.Thread(target=work, name="mesh-telemetry-collector", daemon=True).start()
