"""The actor that manages a service: it starts and replaces replicas, and lists them to callers.

It runs in the process of the service's owner and ends with it. No call passes through it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from mesh_core._calls.actor import Actor
from mesh_core._calls.endpoint_decorators import concurrent_endpoint
from mesh_core._errors import ActorFailed, HostDied, MeshStopped, SupervisionError
from mesh_core._runtime.serving import serving
from mesh_core._services.callers import Callers
from mesh_core._services.replica import Replica, Spec, host_groups
from mesh_core._services.scaling import Intensity, Scaler
from mesh_core._services.view import (
    CUT,
    DRAINED,
    Member,
    ReplicaStatus,
    Report,
    ReportReply,
    ServiceStatus,
    ServiceView,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mesh_core._meshes.host_mesh import HostMesh
    from mesh_core._supervision.policy import MeshFailure

__all__ = ["ServiceController"]

# How long a reply without changes is delayed to wait for one. The delay is shorter with several
# callers, because they need the load of each other.
_PATIENCE_S, _PATIENCE_AMONG_MANY_S = 0.25, 0.1
# The number of retired replicas whose kind of retirement is remembered.
_RETIRED_MAX = 256


class ServiceController(Actor):
    """Manages one service."""

    async def __init__(self, spec: Spec) -> None:  # type: ignore[misc]
        current = serving()
        assert current is not None
        self._cell = current.cell
        self._spec = spec
        options = spec.options
        self._target = options.num_replicas
        self._groups = host_groups(options.hosts, options.hosts_per_replica)
        self._replicas: dict[int, Replica] = {}
        self._callers = Callers()
        self._intensity = Intensity(
            options.replacements_max,
            options.replacement_period_s,
            options.backoff_s,
            options.backoff_max_s,
        )
        self._last_id = -1
        self._version = 0
        self._retired: dict[int, str] = {}
        self._is_closed = False
        # The replica with which an update replaces an old one, until it accepts calls.
        self._renewal: Replica | None = None
        self._losses = 0
        self._last_error = ""
        self._has_started = False
        self._was_ready = False
        # Set and replaced at each change for which a task may wait.
        self._news = asyncio.Event()
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._run(self._adjust_on())
        if options.autoscale is not None:
            self._run(self._scale_on(Scaler(options.autoscale), options.autoscale.period_s))

    # Endpoints for callers.

    @concurrent_endpoint
    async def exchange(self, report: Report, is_patient: bool) -> ReportReply:
        """Store the load report of a caller; return changes and the load of the other callers."""
        self._callers.heard(report)
        count = len(self._callers)
        if is_patient and report.version == self._version:
            await self._wait_for_news(_PATIENCE_AMONG_MANY_S if count > 1 else _PATIENCE_S)
        view = None if report.version == self._version else self._view()
        return ReportReply(view, self._callers.loads(report.caller), count)

    @concurrent_endpoint
    async def ready(self) -> bool:
        """Wait until all replicas have been ready at least once."""
        await self._until(lambda: self._was_ready)
        return True

    @concurrent_endpoint
    async def settled(self) -> None:
        """Wait until the number of replicas is the target and all are ready."""
        await self._until(self._is_settled)

    @concurrent_endpoint
    async def status(self) -> ServiceStatus:
        """Return the status of the service."""
        loads = self._callers.loads()
        replicas = tuple(
            ReplicaStatus(
                replica.id,
                replica.state,
                replica.mesh,
                *loads.get(replica.id, (0, 0)),
                replica.age_s,
                replica.spec.generation,
            )
            for replica in self._replicas.values()
        )
        return ServiceStatus(
            name=self._spec.name,
            num_replicas=self._target,
            replicas=replicas,
            queued=self._callers.queued(),
            callers=len(self._callers),
            generation=self._spec.generation,
            losses=self._losses,
            last_error=self._last_error,
        )

    # Endpoints for the owner.

    @concurrent_endpoint
    async def resize(self, num_replicas: int) -> None:
        """Start or drain replicas, and wait until their number is `num_replicas`."""
        async with self._changing:
            self._target = num_replicas
            self._tell()
            await self.settled()

    @concurrent_endpoint
    async def update(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Replace the old replicas by new ones, one at a time."""
        async with self._changing:
            old = self._spec
            self._spec = Spec(old.name, cls, args, kwargs, old.options, old.generation + 1)
            try:
                while True:
                    outdated = [r for r in self._serving() if r.spec is not self._spec]
                    if not outdated or self._is_ending():
                        return
                    await self._renew(outdated[0])
            except BaseException as error:
                # Replaced replicas stay. Replicas lost from now on are started with the old spec.
                self._spec = old
                raise _origin(error) from None

    @concurrent_endpoint
    async def close(self, is_drained: bool) -> None:
        """Accept no more calls, drain outstanding ones if requested, and stop all replicas."""
        if not self._is_closed:
            self._is_closed = True
            self._tell()
            ids = set(self._replicas)
            limit_s = self._spec.options.drain_timeout_s if is_drained else 0.0
            is_idle = await self._callers.idle(ids, self._version, limit_s)
            replicas = list(self._replicas.values())
            self._replicas.clear()
            ends = [self._end(one, is_kind=is_idle and one.was_ready) for one in replicas]
            await asyncio.gather(*ends)

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Replace a failed replica."""
        self._cell.loop.call_soon_threadsafe(self._on_failure, failure)  # type: ignore[attr-defined]
        return True

    async def __cleanup__(self, error: Exception | None) -> None:
        for task in self._tasks:
            task.cancel()
        # A replica may have been spawning while everything spawned was stopped.
        await asyncio.gather(*(replica.kill() for replica in self._replicas.values()))

    # The number of replicas.

    async def _adjust_on(self) -> None:
        while not self._is_ending():
            now_s = time.monotonic()
            missing = self._target - len(self._serving())
            pause_s = self._intensity.start_at_s - now_s
            wait_s: float | None = None
            if missing > 0 and pause_s > 0:
                wait_s = pause_s
            elif missing > 0:
                for _ in range(missing):
                    self._run(self._start_or_lose(self._new_replica()))
            elif missing < 0:
                for replica in self._least_needed(-missing):
                    self._drain_soon(replica)
            await self._wait_for_news(wait_s)

    async def _scale_on(self, scaler: Scaler, period_s: float) -> None:
        while not self._is_ending():
            await asyncio.sleep(period_s)
            if self._changing.locked():
                continue
            calls = sum(calls for calls, _ in self._callers.loads().values())
            calls += self._callers.queued()
            wanted = scaler.step(calls, self._target, time.monotonic())
            if wanted != self._target:
                self._target = wanted
                self._tell()

    def _new_replica(self) -> Replica:
        self._last_id += 1
        replica = Replica(self._last_id, self._spec, self._least_used_group())
        self._replicas[replica.id] = replica
        return replica

    def _least_used_group(self) -> HostMesh:
        """Return the group of hosts with the fewest replicas."""
        used = [replica.hosts for replica in self._replicas.values()]
        return min(self._groups, key=used.count)

    async def _start_or_lose(self, replica: Replica) -> None:
        try:
            await self._start(replica)
        except Exception as error:
            self._lose(replica, error)

    async def _start(self, replica: Replica) -> None:
        await replica.start()
        if replica.id not in self._replicas:
            # It was abandoned or has died while it started.
            return
        replica.was_ready = True
        if replica.state == "starting":
            replica.state = "ready"
        self._has_started = True
        self._intensity.started()
        ready = sum(one.state == "ready" for one in self._replicas.values())
        self._was_ready = self._was_ready or ready >= self._target
        self._tell()
        check = replica.spec.options.health_check
        if check is not None:
            self._run(self._check_on(replica))

    async def _check_on(self, replica: Replica) -> None:
        check = replica.spec.options.health_check
        assert check is not None
        error = await replica.watch_health(check)
        self._lose(replica, error)

    def _on_failure(self, failure: MeshFailure) -> None:
        for replica in list(self._replicas.values()):
            if any(replica.has(mesh) for mesh in failure.meshes):
                self._lose(replica, failure.error)

    def _lose(self, replica: Replica, error: BaseException) -> None:
        """Kill a replica that is no longer usable, and let another one replace it."""
        if self._replicas.get(replica.id) is not replica or self._is_ending():
            return
        if replica is self._renewal and not replica.was_ready:
            # The update gets this error itself.
            return
        if isinstance(error, MeshStopped):
            # Only the end of this actor stops its meshes.
            self._is_closed = True
            return
        origin = _origin(error)
        self._last_error = str(origin)
        self._give_up(replica)
        if isinstance(error, HostDied):
            self._lose_hosts(replica.hosts)
        # If the first start fails, every other start would fail in the same way.
        is_hopeless = not self._has_started and not isinstance(origin, SupervisionError)
        if self._intensity.lost(time.monotonic(), was_ready=replica.was_ready) or is_hopeless:
            self._cell.fail_of(origin)

    def _lose_hosts(self, hosts: HostMesh) -> None:
        """Abandon every replica that is at least partly on a dead host.

        The limit of replacements counts this as a single loss; the status counts each replica.
        """
        if len(self._groups) > 1:
            self._groups = [group for group in self._groups if group is not hosts]
        for replica in list(self._replicas.values()):
            if replica.hosts is hosts:
                self._give_up(replica)

    def _give_up(self, replica: Replica) -> None:
        self._losses += 1
        self._remove(replica, CUT)
        text = self._last_error.partition("\n")[0]
        self.logger.warning("service %r lost replica %d: %s", self._spec.name, replica.id, text)
        self._run(replica.kill())

    # Removing replicas.

    def _least_needed(self, count: int) -> list[Replica]:
        """Return the most dispensable replicas: few sessions, few calls, and the youngest first."""
        loads = self._callers.loads()

        def need(replica: Replica) -> tuple[bool, int, int, int]:
            calls, sessions = loads.get(replica.id, (0, 0))
            return replica.state != "starting", sessions, calls, -replica.id

        return sorted(self._serving(), key=need)[:count]

    def _drain_soon(self, replica: Replica) -> asyncio.Task[None]:
        replica.state = "draining"
        self._tell()
        return self._run(self._drain(replica, self._version))

    async def _drain(self, replica: Replica, version: int) -> None:
        """Wait until outstanding calls have ended, then stop the replica."""
        limit_s = self._spec.options.drain_timeout_s
        is_idle = await self._callers.idle({replica.id}, version, limit_s)
        if self._replicas.get(replica.id) is replica and not self._is_ending():
            self._remove(replica, DRAINED if is_idle else CUT)
            await self._end(replica, is_kind=is_idle)

    async def _renew(self, old: Replica) -> None:
        """Replace an old replica by a new one without reducing the number of replicas."""
        new = self._renewal = self._new_replica()
        try:
            await self._start(new)
        except BaseException:
            self._renewal = None
            if self._replicas.get(new.id) is new:
                self._remove(new, CUT)
            await new.kill()
            raise
        drained = None
        if self._replicas.get(old.id) is old and self._replicas.get(new.id) is new:
            drained = self._drain_soon(old)
        self._renewal = None
        self._tell()
        if drained is not None:
            await drained

    async def _end(self, replica: Replica, *, is_kind: bool) -> None:
        if not is_kind:
            await replica.kill()
            return
        try:
            await replica.stop()
        except Exception as error:
            self._last_error = str(error)
            self.logger.warning("replica %d did not stop cleanly: %s", replica.id, error)

    def _remove(self, replica: Replica, how: str) -> None:
        del self._replicas[replica.id]
        self._retired[replica.id] = how
        if len(self._retired) > _RETIRED_MAX:
            del self._retired[next(iter(self._retired))]
        self._tell()

    # State, and notification of its changes.

    def _serving(self) -> list[Replica]:
        """Return the replicas that count: neither draining ones nor the new one of an update."""
        return [
            replica
            for replica in self._replicas.values()
            if replica.state != "draining" and replica is not self._renewal
        ]

    def _is_settled(self) -> bool:
        states = [replica.state for replica in self._replicas.values()]
        return len(states) == self._target and all(state == "ready" for state in states)

    def _is_ending(self) -> bool:
        return self._is_closed or self._cell.is_stop_wanted or self._cell.ending.is_begun.is_set()

    def _view(self) -> ServiceView:
        members = tuple(
            Member(replica.id, replica.mesh, replica.state == "ready")
            for replica in self._replicas.values()
            if replica.mesh is not None and replica.was_ready
        )
        return ServiceView(self._version, members, dict(self._retired), self._is_closed)

    def _tell(self) -> None:
        """Record a change and wake the tasks that wait for one."""
        self._version += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _wait_for_news(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._is_closed:
                raise MeshStopped(mesh_name=self._spec.name)
            await self._wait_for_news(None)

    def _run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _origin(error: BaseException) -> BaseException:
    """Return the original error of a failed actor."""
    while isinstance(error, ActorFailed) and error.__cause__ is not None:
        error = error.__cause__
    return error
