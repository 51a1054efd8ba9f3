"""Processes as an array: `ProcMesh`, on which actors are spawned."""

from __future__ import annotations

import signal
from typing import Any, ParamSpec, TypeVar, overload

from mesh_core._calls.actor import Actor
from mesh_core._calls.port_transit import note_ports
from mesh_core._calls.task_future import AgentFuture, EndFuture, HostStopFuture, ReadyFuture
from mesh_core._configuration.config import effective
from mesh_core._core import Region, Targets
from mesh_core._errors import MeshStopped
from mesh_core._meshes.actor_mesh import ActorMesh, check_class
from mesh_core._meshes.host_requests import ask_hosts, start_again
from mesh_core._meshes.mesh_place import AGENT_WINDOW, ENDED, check_owned, index_in, owner_here
from mesh_core._meshes.patches import replacement_of
from mesh_core._meshes.placed_mesh import ContextMesh, PlacedMesh
from mesh_core._meshes.proc_table import ProcTable
from mesh_core._meshes.replacement import replace_lost
from mesh_core._meshes.spawn_checks import check_arguments, check_name_and_class
from mesh_core._meshes.spawn_request import SpawnRequest
from mesh_core._runtime.handle_job import runtime_of_job
from mesh_core._runtime.runtime import runtime
from mesh_core._serialization.pickler import encode_request
from mesh_core._serialization.wire import SPAWN
from mesh_core._supervision.policy import RestartPolicy
from mesh_core._tensor_engine import tensor_engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Literal, Self

    from mesh_core._calls.future import Future
    from mesh_core._meshes.host_mesh import HostMesh
    from mesh_core._runtime.runtime import Runtime
    from mesh_core._shapes.shape import Point

__all__ = ["ProcMesh", "this_proc"]

A = TypeVar("A", bound=Actor)
P = ParamSpec("P")


class ProcMesh(PlacedMesh, ContextMesh):
    """Processes on hosts, on which actors are spawned."""

    # The function that unpickles an `ActorMesh`.
    _restore_actors: Callable[..., ActorMesh[Any]]
    # The class `HostMesh`, whose module imports this one.
    _host_mesh: type[HostMesh]

    def __init__(self, table: ProcTable, region: Region, current: Runtime | None = None) -> None:
        # A handle belongs to the job in which it was created, even if the program starts another
        # job.
        self._runtime = runtime() if current is None else current
        self._table = table
        self._region = region
        self._whole = table.region
        self._uid = table.uid

    def _with_region(self, region: Region) -> Self:
        return type(self)(self._table, region, self._runtime)

    @property
    def _name(self) -> str:
        return self._table.name

    # Errors identify a process by its mesh and rank.
    _class_name = None

    def _targets(self) -> Targets:
        return Targets([(self._proc_of(index), index) for index in range(len(self))])

    @overload
    def spawn(self, name: str, cls: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A: ...
    @overload
    def spawn(
        self,
        name: str,
        cls: type[A],
        /,
        *args: Any,
        restart: str | RestartPolicy,
        mailbox_len_max: int | None = None,
        **kwargs: Any,
    ) -> A: ...
    @overload
    def spawn(
        self,
        name: str,
        cls: type[A],
        /,
        *args: Any,
        restart: str | RestartPolicy | None = None,
        mailbox_len_max: int,
        **kwargs: Any,
    ) -> A: ...
    def spawn(
        self,
        name: str,
        cls: Any = None,
        /,
        *args: Any,
        restart: Any = None,
        mailbox_len_max: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Start one actor in each process and return before they run.

        The result is an `ActorMesh`. Its static type is the class, so that type checkers know the
        endpoints.

        Args:
            name: The name for logs and errors; need not be unique.
            cls: The class of the actors.
            *args: Arguments of its `__init__`; pickled immediately.
            restart: The policy if an actor fails or its process dies: `permanent`, `transient`,
                `temporary`, or a `RestartPolicy`. Default: the failure is reported.
            mailbox_len_max: The maximum number of messages of one sender that wait in an actor's
                mailbox.
            **kwargs: Keyword arguments of its `__init__`.

        Raises:
            ValueError: `cls` is not a subclass of `Actor`, an endpoint has the name of an attribute
                of every mesh, or `mailbox_len_max` is less than 1.
            TypeError: The name or the class is missing, or the arguments do not match `__init__`
                or cannot be pickled.
            MeshStopped: The processes were stopped.
        """
        check_name_and_class(name, cls)
        cls = replacement_of(cls)
        check_class(cls)
        check_arguments(cls, args, kwargs)
        current = self._runtime
        owner = owner_here()
        policy = RestartPolicy.of(restart)
        if current.is_over:
            raise MeshStopped(mesh_name=self._name, actor=name)
        if self._table.owner[0] == current.me and self._uid in current.stopped_meshes:
            why = current.stop_reasons.get(self._uid)
            raise MeshStopped(why, mesh_name=self._name, actor=name)
        window = effective().mailbox_len_max if mailbox_len_max is None else mailbox_len_max
        if window < 1:
            raise ValueError(f"mailbox_len_max {window} is less than 1")
        owner_name = current.address(owner[1])
        request = SpawnRequest(
            cls, args, kwargs, name, self._table, self._region, owner, owner_name, window
        )
        whole = self._with_region(self._whole)
        port = current.engine.new_port()
        mesh: ActorMesh[Any] = ActorMesh(port, name, cls, whole, self._region, owner, window)
        body, buffers = encode_request(request, effective().segment_threshold_bytes)
        current.spawn_requests[mesh._port] = (body, buffers, window)
        current.ownership.announce(owner[1], mesh, policy)
        note_ports(body, mesh._targets)
        reply = current.engine.call(
            SPAWN,
            mesh._targets,
            mesh._port,
            window.to_bytes(4, "little"),
            body,
            buffers,
            AGENT_WINDOW,
            None,
            None,
        )
        current.engine.forget(reply)
        current.ownership.spawned(owner[1], mesh, policy)
        return mesh

    @property
    def initialized(self) -> Future[Literal[True]]:
        """Done when every process runs and `bootstrap` has returned there.

        Raises the exception of `bootstrap`, or `ProcDied`.
        """
        if self._runtime.is_over:
            raise MeshStopped(mesh_name=self._name)
        reply = self._runtime.call_agents(self._targets(), "ready")
        return ReadyFuture(reply, self, "bootstrap", value=True)

    def stop(self, reason: str = "stopped by its owner") -> Future[None]:
        """Stop the actors, which serve queued messages and clean up, and then the processes.

        Stopping a mesh twice has the same effect as stopping it once. The future raises any
        exception of a `__cleanup__` of the owner's actors, and the failure of an actor that fails
        during the stop.

        Raises:
            ValueError: The mesh is a slice, or has another owner.
        """
        current = self._runtime
        if current.is_over:
            return ENDED
        check_owned(self, self._is_slice, self._table.owner)
        return self._begin_stop(None)

    def _begin_stop(self, reason: str | None) -> Future[None]:
        """Stop the mesh without an ownership check; callers get the reason, if given."""
        current = self._runtime
        if self._uid in current.stopped_meshes:
            return current.stopped_meshes[self._uid]
        current.ownership.stopping(self._uid)
        grace_s = effective().stop_grace_s
        actors = []
        for mesh in reversed(current.ownership.children_of(self._table.owner[1])):
            if isinstance(mesh, ActorMesh) and mesh._table == self._table:
                current.ownership.stopping(mesh._uid)
                if mesh._uid not in current.stopped_meshes:
                    # They end with their processes, but only they can report the result of their
                    # cleanup.
                    stop = mesh._stop_actors(grace_s, True, is_forced=True, reason=reason)
                    actors.append(stop)
                mesh._mark_stopped(reason)
        future = self._stop_procs(grace_s, actors)
        current.note_stopped(self._uid, future, reason)
        return future

    def _stop_procs(
        self, grace_s: float, actors: Sequence[Future[Any]] = (), *, is_drained: bool = True
    ) -> EndFuture:
        replies = []
        for host, first in self._table.hosts:
            slots = list(range(first, first + self._table.per_host))
            targets = Targets([(host << 32, 0)])
            replies.append(self._runtime.call_agents(targets, "stop", slots, grace_s, is_drained))
        parts = [HostStopFuture(reply, self, "stop") for reply in replies]
        return EndFuture([*actors, *parts], self._runtime.ownership, self._ended)

    def _ended(self) -> None:
        ownership = self._runtime.ownership
        self._runtime.stopped_meshes[self._uid] = ENDED
        for mesh in ownership.children_of(self._table.owner[1]):
            if isinstance(mesh, ActorMesh) and mesh._table == self._table:
                ownership.stopped(mesh._uid)
        ownership.stopped(self._uid)

    def _end(self, *, is_owner_failed: bool) -> BaseException | None:
        """Stop the mesh because its owner ends; wait, and return the problem, if any."""
        ownership = self._runtime.ownership
        ownership.stopping(self._uid)
        # The program may have requested the stop just before.
        future = self._runtime.stopped_meshes.get(self._uid)
        if future is None:
            grace_s = ownership.grace_s()
            future = self._stop_procs(grace_s, is_drained=not is_owner_failed)
            self._runtime.stopped_meshes[self._uid] = future
        return future.outcome()

    def replace(self, rank: int | Point) -> None:
        """Start a new process in the slot of a dead one, with the actors that it had.

        All handles of the mesh stay valid: messages sent from now on reach the new process. If the
        host has died, a standby worker replaces it first.

        Raises:
            HostDied: Its host is dead, and no standby worker is left.
            SpawnError: Some of its actors were spawned by a previous program, with more data than
                the journal stores (1 MiB).
            IndexError: The rank does not exist.
            RuntimeError: The process is alive.
            ValueError: The mesh has another owner.
        """
        check_owned(self, False, self._table.owner, "replace a rank of")
        index = index_in(self, rank)
        if not self._replace_lost(index):
            raise RuntimeError(
                f"rank {index} of {self!r} is alive: only a dead rank can be replaced"
            )

    def kill(self, rank: int | Point) -> None:
        """Send SIGKILL to the process of a rank, for example because it hangs.

        This works even if the process does not reply or was stopped by a signal. The death is
        reported like any other, as `ProcDied`, after this function has returned. If the process
        is dead already, the call has no effect.

        Raises:
            HostDied: Its host is dead.
            IndexError: The rank does not exist.
            ValueError: The mesh has another owner.
        """
        check_owned(self, False, self._table.owner, "kill a rank of")
        proc = self._proc_of(index_in(self, rank))
        ask_hosts(self, [proc >> 32], "signal", proc & 0xFFFF_FFFF, signal.SIGKILL)

    def _replace_lost(self, index: int) -> bool:
        """Replace a rank if its process has died; return whether it had."""
        return replace_lost(self, index)

    def _restart_rank(self, index: int) -> Future[Any]:
        """Start a rank again; the future is done when it runs."""
        start_again(self, index)
        targets = Targets([(self._proc_of(index), index)])
        return AgentFuture(self._runtime.call_agents(targets, "ready"), self, "bootstrap")

    @property
    def host_mesh(self) -> HostMesh:
        """The hosts of these processes."""
        hosts = tuple(host for host, _ in self._table.hosts)
        command = self._table.command
        if len(hosts) == 1:
            return self._host_mesh(hosts, Region.row_major([], []), command)
        return self._host_mesh(hosts, Region.row_major(["hosts"], [len(hosts)]), command)

    def activate(self) -> AbstractContextManager[Any]:
        """Create tensors inside a `with` block on these processes, one on each.

        Raises:
            RuntimeError: No package that implements tensors is installed.
        """
        return tensor_engine().activate(self._with_region(self._whole), self._region)

    async def logging_option(
        self,
        stream_to_client: bool = False,
        aggregate_window_sec: int | None = None,
        level: int = 20,
    ) -> None:
        """Set which logs of the processes are printed here.

        Raises:
            RuntimeError: A window is given without `stream_to_client`.
            ValueError: The level is not from 0 to 255.
        """
        if aggregate_window_sec is not None and not stream_to_client:
            raise RuntimeError("aggregate_window_sec needs stream_to_client=True")
        if not 0 <= level <= 255:
            raise ValueError(f"level {level} is not from 0 to 255")
        reply = self._runtime.call_agents(self._targets(), "log_level", level)
        await AgentFuture(reply, self, "logging_option")

    def _end_context(self) -> Future[None]:
        return self.stop()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ProcMesh)
            and self._runtime is other._runtime
            and self._table == other._table
            and self._region == other._region
        )

    def __hash__(self) -> int:
        return hash((self._table, self._region))

    def __repr__(self) -> str:
        return f"<ProcMesh {self._name!r} {self.extent}>"

    def __reduce__(self) -> Any:
        return _restore_proc_mesh, (self._runtime.identity.job, self._table, self._region)


def _restore_actor_mesh(
    job: bytes,
    port: int,
    name: str,
    cls: type[A],
    table: ProcTable,
    region: Region,
    owner: tuple[int, int],
    window: int,
    whole: Region,
) -> ActorMesh[A]:
    """Unpickle a handle; raises `ForeignHandle` in a process of another job."""
    procs = ProcMesh(table, table.region, runtime_of_job(job, "actor mesh", name))
    return ActorMesh(port, name, cls, procs, region, owner, window, whole)


# `ActorMesh` reaches the function through its processes: its own module cannot import this one.
ProcMesh._restore_actors = staticmethod(_restore_actor_mesh)


def _restore_proc_mesh(job: bytes, table: ProcTable, region: Region) -> ProcMesh:
    """Unpickle a handle; raises `ForeignHandle` in a process of another job."""
    return ProcMesh(table, region, runtime_of_job(job, "proc mesh", table.name))


def this_proc() -> ProcMesh:
    """Return the process of the caller, as a mesh of one without dimensions."""
    identity = runtime().identity
    if identity.table is None:
        return ProcMesh(_root_table(), Region.row_major([], []))
    region = identity.table.region.member(identity.rank)
    return ProcMesh(identity.table, region)


def _root_table() -> ProcTable:
    identity = runtime().identity
    hosts = ((identity.host, identity.slot),)
    region = Region.row_major([], [])
    return ProcTable(2, "root", hosts, 1, region, (runtime().me, 0), identity.host_name)
