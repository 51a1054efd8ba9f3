"""Actors as an array with named dimensions, as returned by `ProcMesh.spawn`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from mesh_core._calls.actor import Actor, endpoints_of, member_of
from mesh_core._calls.endpoint import endpoint_of
from mesh_core._calls.endpoint_decorators import EndpointProperty
from mesh_core._calls.task_future import AgentFuture, EndFuture, ReadyFuture, StopFuture
from mesh_core._configuration.config import effective
from mesh_core._core import Region, Targets
from mesh_core._errors import MeshStopped, SpawnError
from mesh_core._meshes.host_requests import start_again
from mesh_core._meshes.mesh_place import AGENT_WINDOW, ENDED, check_owned, index_in
from mesh_core._meshes.placed_mesh import PlacedMesh
from mesh_core._serialization.wire import CALL, INTERNAL, READY, SPAWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, Self

    from mesh_core._calls.future import Future
    from mesh_core._meshes.proc_mesh import ProcMesh
    from mesh_core._shapes.shape import Point

__all__ = ["ActorMesh", "check_class"]

A = TypeVar("A", bound=Actor)
_READY = bytes([INTERNAL]) + READY.encode() + b"\0"


class ActorMesh(PlacedMesh, Generic[A]):
    """Actors in processes. Endpoints of their class are attributes: `mesh.step.call(...)`."""

    def __init__(
        self,
        port: int,
        name: str,
        cls: type[A],
        procs: ProcMesh,
        region: Region,
        owner: tuple[int, int],
        window: int,
        whole: Region | None = None,
    ) -> None:
        # All processes of the table; `region` is a subset of them.
        self._procs = procs
        self._runtime = procs._runtime
        self._port = self._uid = port
        self._name = name
        self._cls = cls
        self._class_name = cls.__qualname__
        self._table = procs._table
        self._region = region
        self._whole = region if whole is None else whole
        self._owner_address = owner
        self._window = window

    def _with_region(self, region: Region) -> Self:
        return type(self)(
            self._port,
            self._name,
            self._cls,
            self._procs,
            region,
            self._owner_address,
            self._window,
            self._whole,
        )

    def _as_class(self, cls: type[Any]) -> ActorMesh[Any]:
        """Return the same actors as instances of the class that their processes have."""
        return ActorMesh(
            self._port,
            self._name,
            cls,
            self._procs,
            self._region,
            self._owner_address,
            self._window,
            self._whole,
        )

    @property
    def _stopped(self) -> bool:
        current = self._runtime
        return self._port in current.stopped_meshes or current.is_over

    def _mark_stopped(self, reason: str | None) -> None:
        if self._port not in self._runtime.stopped_meshes:
            self._runtime.note_stopped(self._port, ENDED, reason)

    def _target(self, index: int) -> Targets:
        return Targets([(self._proc_of(index), index)])

    def __getattr__(self, name: str) -> Any:
        if name == "_targets":
            pairs = [(self._proc_of(index), index) for index in range(len(self))]
            self.__dict__["_targets"] = targets = Targets(pairs)
            return targets
        if name.startswith("__"):
            raise AttributeError(name)
        found = member_of(self.__dict__["_cls"], name)
        handle = endpoint_of(self, name, found)
        if isinstance(found, EndpointProperty):
            # The next look-up finds the attribute without calling `__getattr__`.
            self.__dict__[name] = handle
        return handle

    @property
    def initialized(self) -> Future[Literal[True]]:
        """Done when `__init__` has returned everywhere; raises the exception that it raised."""
        if self._stopped:
            raise MeshStopped(mesh_name=self._name)
        reply = self._runtime.engine.call(
            CALL, self._targets, self._port, _READY, b"", [], AGENT_WINDOW, None, None
        )
        return ReadyFuture(reply, self, "__init__", value=True)

    def stop(self, reason: str = "stopped by its owner") -> Future[None]:
        """Stop the actors after they have served the queued messages; each one cleans up.

        Stopping a mesh twice has the same effect as stopping it once. The future raises any
        exception of a `__cleanup__`, and the failure of an actor that fails during the stop.

        Raises:
            ValueError: The mesh is a slice, or has another owner.
        """
        current = self._runtime
        if current.is_over:
            return ENDED
        check_owned(self, self._is_slice, self._owner_address)
        return self._begin_stop(None)

    def _begin_stop(self, reason: str | None) -> Future[None]:
        """Stop the mesh without an ownership check; callers get the reason, if given."""
        current = self._runtime
        if self._port in current.stopped_meshes:
            return current.stopped_meshes[self._port]
        current.ownership.stopping(self._port)
        future = self._end_future(effective().stop_grace_s, True, reason)
        current.note_stopped(self._port, future, reason)
        return future

    def _end_future(self, grace_s: float, is_drained: bool, reason: str | None = None) -> EndFuture:
        parts = [self._stop_actors(grace_s, is_drained, reason=reason)]
        return EndFuture(parts, self._runtime.ownership, self._ended)

    def _stop_actors(
        self,
        grace_s: float,
        is_drained: bool,
        *,
        is_forced: bool = False,
        reason: str | None = None,
    ) -> StopFuture:
        reply = self._runtime.call_agents(
            self._targets, "stop_actor", self._port, is_drained, grace_s, reason
        )
        if not is_forced:
            self._runtime.stop_watch.watch(reply, grace_s)
        return StopFuture(reply, self, is_forced=is_forced)

    def _ended(self) -> None:
        self._runtime.stopped_meshes[self._port] = ENDED
        self._runtime.ownership.stopped(self._port)

    def _end(self, *, is_owner_failed: bool) -> BaseException | None:
        """Stop the mesh because its owner ends; wait, and return the problem, if any."""
        current = self._runtime
        future = current.stopped_meshes.get(self._port)
        if future is None:
            grace_s = current.ownership.grace_s()
            future = self._end_future(grace_s, not is_owner_failed)
            current.stopped_meshes[self._port] = future
        return future.outcome()

    def replace(self, rank: int | Point) -> None:
        """Start a failed actor again, or its process with all its actors if the process has died.

        Raises:
            HostDied: Its host is dead, and no standby worker is left.
            SpawnError: It was spawned by a previous program, with more data than the journal stores
                (1 MiB).
            IndexError: The rank does not exist.
            ValueError: The mesh is a slice, or has another owner.
        """
        check_owned(self, self._is_slice, self._owner_address, "replace a rank of")
        index = index_in(self, rank)
        at = self._table.rank_of(self._proc_of(index))
        assert at is not None
        procs = self._procs
        check_owned(procs, False, self._table.owner, "replace a rank of")
        if not procs._replace_lost(at):
            # Its process is alive, so only the actor is started again.
            self._respawn(index)
            self._runtime.ownership.restart_done(self._port, index, True)

    def _restart_rank(self, index: int) -> Future[Any]:
        """Start a rank again, in a new process if the old one has died."""
        at = self._table.rank_of(self._proc_of(index))
        assert at is not None
        is_new = start_again(self._procs, at)
        future = self._respawn(index)
        if is_new:
            self._runtime.ownership.announce_restarts(self._proc_of(index))
        return future

    def _respawn(self, index: int) -> Future[Any]:
        """Spawn the actor again; the rest of the previous one is stopped first."""
        request = self._runtime.spawn_requests.get(self._port)
        if request is None:
            raise SpawnError(
                f"mesh {self._name!r} was spawned by the previous program with more data than the "
                "journal accepts (1 MiB), so its ranks cannot be restarted: spawn another mesh"
            )
        body, buffers, window = request
        targets = Targets([(self._proc_of(index), index)])
        reply = self._runtime.engine.call(
            SPAWN,
            targets,
            self._port,
            window.to_bytes(4, "little"),
            body,
            buffers,
            AGENT_WINDOW,
            None,
            None,
        )
        return AgentFuture(reply, self, "__init__")

    def __repr__(self) -> str:
        return f"<ActorMesh {self._name!r} of {self._class_name} {self.extent}>"

    def __reduce__(self) -> Any:
        return self._procs._restore_actors, (
            self._runtime.identity.job,
            self._port,
            self._name,
            self._cls,
            self._table,
            self._region,
            self._owner_address,
            self._window,
            self._whole,
        )


def check_class(cls: type) -> None:
    """Raise ValueError if an endpoint of a class cannot be called on a mesh."""
    taken = [name for name in endpoints_of(cls) if hasattr(ActorMesh, name)]
    if taken:
        raise ValueError(
            f"endpoint {taken[0]!r} of {cls.__qualname__} has the name of an attribute of every "
            "mesh: rename it"
        )
