"""The actor that records its process and the processes that are spawned from it."""

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
from mesh_core.spi import current_process, register_proc_mesh_spawn_callback

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mesh_core import Future, HostMesh, MeshFailure, ProcMesh
    from mesh_telemetry._hosts.coordinator import Coordinator
    from mesh_telemetry._recording.recording import Recording

__all__ = ["COLLECTOR_NAME", "Collector", "is_ours"]

COLLECTOR_NAME = "mesh-telemetry-collector"
_log = logging.getLogger("mesh_telemetry")
# Seconds by which the notification of a restart may precede the notification of the loss.
_RESTART_WINDOW_S = 10.0

#: Set while telemetry spawns its own processes, which are not recorded.
is_ours: contextvars.ContextVar[bool] = contextvars.ContextVar("mesh_telemetry.ours", default=False)


class _WatchedProcs:
    """Processes that are recorded by collectors which this collector owns.

    Args:
        number: Identifies these processes; unique in one collector.
        procs: The processes.
        collectors: The collectors that record them.
        whole: The mesh whose recording was requested first; `procs` is a restarted part of it.
    """

    def __init__(
        self, number: int, procs: ProcMesh, collectors: Collector, whole: ProcMesh
    ) -> None:
        self.number = number
        self.procs = procs
        self.collectors = collectors
        self.whole = whole
        # `lost`: ranks that no collector records. `ended`: all ranks that these collectors no
        # longer record.
        self.lost: set[int] = set()
        self.ended: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether these collectors have ended and will not be replaced."""
        return current_process.is_stopped(self.procs) or (
            len(self.ended) == len(self.procs) and not self.lost
        )

    def mark_lost(self, rank: int) -> None:
        """Mark the collector of a rank as lost.

        The process that replaces it gets a collector in another `_WatchedProcs`.
        """
        if rank not in self.ended:
            self.ended.add(rank)
            self.lost.add(rank)

    def current_collectors(self) -> list[Collector]:
        """Return the collectors that have no replacement.

        Each of them either records its process or reports why it does not.
        """
        replaced = self.ended - self.lost
        if not replaced:
            return [self.collectors]
        row = self.collectors.flatten("rank")
        ranks = [rank for rank in range(len(row)) if rank not in replaced]
        return [row.slice(rank=slice(rank, rank + 1)) for rank in ranks]


class Collector(Actor):
    """Records its process for as long as the actor lives.

    A collector owns the collectors of all processes that are spawned from its process, so that the
    owner of those processes is not notified when a collector fails. If a collector is lost, it is
    started again when its process is replaced.

    Args:
        recording: The run for which the process is recorded.
        coordinator: The actor that tracks all hosts of the run.
    """

    def __init__(self, recording: Recording, coordinator: Coordinator) -> None:
        self._recording = recording
        self._coordinator = coordinator
        self._is_over = False
        self._lock = threading.Lock()
        self._watched: list[_WatchedProcs] = []
        self._numbers = itertools.count()
        self._registered_hosts = {current_process.location().host}
        self._restarted_at = -_RESTART_WINDOW_S
        # Actors spawned in this context belong to this actor, in whichever thread the spawn
        # happens.
        self._context = contextvars.copy_context()
        recording.start(self._on_restarted, context().actor_instance.actor_id.port)
        self._unregister: Callable[[], None] = register_proc_mesh_spawn_callback(self._on_spawn)

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Record which processes are no longer recorded, until they are replaced."""
        with self._lock:
            for watched in self._watched:
                if any(mesh == watched.collectors for mesh in failure.meshes):
                    # `failure.rank` is the rank in the first mesh that failed.
                    watched.mark_lost(0 if len(watched.collectors) == 1 else failure.rank or 0)
            is_actor_failure = isinstance(failure.error, ActorFailed)
            was_restarted = time.monotonic() - self._restarted_at < _RESTART_WINDOW_S
        if is_actor_failure:
            _log.warning("a process is not recorded: %s", failure.error)
        elif was_restarted:
            self._restart_lost()
        return True

    @endpoint
    def watch(self, procs: ProcMesh) -> list[tuple[int, Collector]]:
        """Record processes that already exist.

        Returns:
            Pairs of a number and collectors. The processes are recorded once the collectors are
            initialized. The number identifies the collectors in a call of `lost`.
        """
        self._start_collectors(procs)
        failures = self._restart_lost(procs)
        if failures:
            raise failures[0]
        with self._lock:
            found = [one for one in self._watched if one.whole == procs]
            return [(one.number, each) for one in found for each in one.current_collectors()]

    @endpoint
    def lost(self, lost: list[tuple[int, int]]) -> None:
        """Mark ranks of collectors as lost; called by the process that detected the loss first."""
        with self._lock:
            for watched in self._watched:
                for number, rank in lost:
                    if number == watched.number:
                        watched.mark_lost(rank)

    def __cleanup__(self, error: Exception | None) -> None:
        self._unregister()
        with self._lock:
            self._watched.clear()
            is_over, self._is_over = self._is_over, True
        if not is_over:
            self._recording.stop()

    def _on_spawn(self, procs: ProcMesh) -> None:
        """Record processes that this process spawns, before anything runs in them."""
        if is_ours.get() or self._is_over:
            return
        # A failure here must not fail the spawn. If the new processes fail, they report it
        # themselves.
        with suppress(MeshError):
            self._context.copy().run(self._start_collectors, procs)

    def _start_collectors(self, procs: ProcMesh) -> None:
        with self._lock:
            self._prune()
            if any(watched.whole == procs for watched in self._watched):
                return
        self._register_hosts(procs.host_mesh)
        collectors = procs.spawn(COLLECTOR_NAME, Collector, self._recording, self._coordinator)
        self._add(procs, collectors, procs)

    def _add(self, procs: ProcMesh, collectors: Collector, whole: ProcMesh) -> _WatchedProcs:
        with self._lock:
            added = _WatchedProcs(next(self._numbers), procs, collectors, whole)
            self._watched.append(added)
        return added

    def _prune(self) -> None:
        """Remove entries that have ended and will not be replaced."""
        self._watched = [one for one in self._watched if not one.is_over]

    def _register_hosts(self, hosts: HostMesh) -> None:
        """Register hosts on which this process has not recorded anything yet."""
        row = hosts.flatten("host")
        for at, number in enumerate(current_process.host_numbers(row)):
            if number in self._registered_hosts:
                continue
            self._registered_hosts.add(number)
            host = row.slice(host=at)
            # Only the agent process of a host is notified of the output and the exits of its
            # processes.
            current_process.host_agents(host).spawn(
                COLLECTOR_NAME, Collector, self._recording, self._coordinator
            )
            self._coordinator.add_hosts.broadcast(host)

    def _on_restarted(self) -> None:
        with self._lock:
            self._restarted_at = time.monotonic()
        self._context.copy().run(self._restart_lost)

    def _restart_lost(self, whole: ProcMesh | None = None) -> list[Exception]:
        """Start lost collectors again in processes that may have been replaced.

        Args:
            whole: The mesh to restore; all meshes if omitted.

        Returns:
            The errors. The failed ranks are retried with the next call.
        """
        with self._lock:
            self._prune()
            found = [one for one in self._watched if whole is None or one.whole == whole]
            lost = [(one, rank) for one in found for rank in sorted(one.lost)]
            for one in found:
                one.lost.clear()
        failures: list[Exception] = []
        for watched, rank in lost:
            try:
                self._restart_collector(watched, rank)
            except (MeshError, IndexError) as error:
                failures.append(error)
                with self._lock:
                    watched.lost.add(rank)
        return failures

    def _restart_collector(self, watched: _WatchedProcs, rank: int) -> None:
        member = watched.procs.flatten("rank").slice(rank=slice(rank, rank + 1))
        began_at = time.monotonic()
        again = member.spawn(COLLECTOR_NAME, Collector, self._recording, self._coordinator)
        added = self._add(member, again, watched.whole)
        again.initialized.add_done_callback(partial(self._on_started, added, began_at))
        # The replacement may be on another host than the process that was registered.
        self._registered_hosts -= set(current_process.host_numbers(member)) - {
            current_process.location().host
        }
        self._register_hosts(member.host_mesh)

    def _on_started(self, added: _WatchedProcs, began_at: float, begun: Future[Any]) -> None:
        """Handle a collector that did not start; retry if its process has been restarted since."""
        if begun.exception() is None:
            return
        with self._lock:
            added.mark_lost(0)
            was_restarted = began_at < self._restarted_at
        if was_restarted and not self._is_over:
            # The callback runs in the thread that delivers all replies, which must not block.
            work = partial(self._context.copy().run, self._restart_lost)
            threading.Thread(target=work, name="mesh-telemetry-collector", daemon=True).start()
