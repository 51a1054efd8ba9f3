"""One replica of a service: its own processes, and the actors on them."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextvars import copy_context
from functools import partial
from typing import Any

from mesh_core._calls.own_thread import run_beside
from mesh_core._configuration.config import effective
from mesh_core._errors import MeshError, SpawnError, SupervisionError
from mesh_core._meshes.host_mesh import HostMesh, this_host
from mesh_core._meshes.proc_mesh import ProcMesh
from mesh_core._services.replica_state import is_loss

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._services.options import HealthCheck, ServiceOptions

__all__ = ["Replica", "Spec", "host_groups"]

# The time that an unresponsive actor has before its process is killed.
_KILL_GRACE_S = 0.5


class Spec:
    """The description of the replicas of a service.

    Attributes:
        name: The name of the service.
        cls: The class.
        args: Its arguments.
        kwargs: Its keyword arguments.
        options: All other options.
        generation: The number of previous updates.
    """

    __slots__ = ("args", "cls", "generation", "kwargs", "name", "options")

    def __init__(
        self,
        name: str,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: ServiceOptions,
        generation: int = 0,
    ) -> None:
        self.name: str = name
        self.cls: type = cls
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs
        self.options: ServiceOptions = options
        self.generation: int = generation


class Replica:
    """One replica, owned by the actor that manages the service.

    Attributes:
        id: Its number in the service.
        spec: Its description.
        hosts: Its hosts.
        state: `starting`, `ready` or `draining`.
        procs: Its processes, once spawned.
        mesh: Its actors, once spawned.
        was_ready: Whether it has ever accepted calls.
    """

    def __init__(self, id: int, spec: Spec, hosts: HostMesh) -> None:
        self.id: int = id
        self.spec: Spec = spec
        self.hosts: HostMesh = hosts
        self.state = "starting"
        self.procs: ProcMesh | None = None
        self.mesh: ActorMesh[Any] | None = None
        self.was_ready = False
        self._spawned: asyncio.Future[None] | None = None
        self._born_at = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since its creation."""
        return time.monotonic() - self._born_at

    def has(self, mesh: object) -> bool:
        """Return whether a mesh of actors or processes belongs to this replica."""
        uid = getattr(mesh, "_uid", None)
        return any(own is not None and own._uid == uid for own in (self.procs, self.mesh))

    async def start(self) -> None:
        """Start the replica, and return when it is ready for calls.

        Raises:
            SpawnError: The start exceeded `start_timeout_s`.
            Exception: The exception of `__init__` or `setup`, or the failure of the replica.
        """
        options = self.spec.options
        try:
            async with asyncio.timeout(options.start_timeout_s):
                # The thread continues if this task is cancelled; stopping the replica waits for it.
                spawn = partial(copy_context().run, self._spawn)
                self._spawned = asyncio.ensure_future(run_beside(spawn))
                await asyncio.shield(self._spawned)
                assert self.mesh is not None
                await self.mesh.initialized
                if options.setup is not None:
                    done = options.setup(self.mesh)
                    if inspect.isawaitable(done):
                        await done
                if options.health_check is not None:
                    await self._check(options.health_check)
        except TimeoutError as error:
            raise SpawnError(
                f"replica {self.id} of service {self.spec.name!r} did not start in "
                f"{options.start_timeout_s:g} s: raise start_timeout_s, or check what it does"
            ) from error

    def _spawn(self) -> None:
        spec = self.spec
        name = f"{spec.name}[{self.id}]"
        self.procs = self.hosts.spawn_procs(
            spec.options.procs, bootstrap=spec.options.bootstrap, name=name
        )
        window = max(effective().mailbox_len_max, 2 * spec.options.outstanding_max)
        spawn: Any = self.procs.spawn
        self.mesh = spawn(name, spec.cls, *spec.args, mailbox_len_max=window, **spec.kwargs)

    async def watch_health(self, check: HealthCheck) -> BaseException:
        """Check its health periodically; return the error once it has failed too often."""
        failures = 0
        while True:
            await asyncio.sleep(check.period_s)
            try:
                await self._check(check)
                failures = 0
            except Exception as error:
                failures += 1
                if failures >= check.failures_max or is_loss(error):
                    return error

    async def _check(self, check: HealthCheck) -> None:
        await getattr(self.mesh, check.endpoint).options(timeout=check.timeout_s).call()

    async def _all_procs(self) -> ProcMesh | None:
        if self._spawned is not None:
            await asyncio.wait([self._spawned])
        return self.procs

    async def stop(self) -> None:
        """Stop the replica normally.

        Raises:
            MeshError: The stop has failed.
        """
        procs = await self._all_procs()
        if procs is not None:
            await procs.stop()

    async def kill(self) -> None:
        """Stop the replica without draining; pending calls get an error."""
        procs = await self._all_procs()
        if procs is None:
            return
        current = procs._runtime
        future = current.stopped_meshes.get(procs._uid)
        if future is None:
            for own in (self.mesh, procs):
                if own is not None:
                    current.ownership.stopping(own._uid)
            future = procs._stop_procs(_KILL_GRACE_S, is_drained=False)
            current.stopped_meshes[procs._uid] = future
        try:
            await future
        except (MeshError, SupervisionError):
            # It is killed because it had failed already.
            return


def host_groups(hosts: HostMesh | None, count: int) -> list[HostMesh]:
    """Split the hosts into groups, each for one replica.

    Raises:
        ValueError: The hosts do not suffice for one group.
    """
    if hosts is None:
        hosts = this_host()
    if len(hosts) < count:
        raise ValueError(
            f"hosts_per_replica {count} exceeds the number of hosts ({len(hosts)}): pass more hosts"
        )
    if not hosts.extent:
        return [hosts]
    flat = hosts.flatten("hosts")
    if count == 1:
        return [flat.slice(hosts=at) for at in range(len(flat))]
    starts = range(0, len(flat) - count + 1, count)
    return [flat.slice(hosts=slice(at, at + count)) for at in starts]
