"""Hosts, processes and actors as arrays with named dimensions.

A mesh is a table of processes and a region of that table. Slicing creates another region over the
same table, so a slice supports what the whole mesh supports: it can be called, split, flattened and
sent in a message. Only a whole mesh, as it was spawned, can be stopped, and only by its owner.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, ParamSpec, TypeVar, overload

from mesh_core._calls.actor import Actor
from mesh_core._calls.port_transit import note_ports
from mesh_core._calls.task_future import AgentFuture, EndFuture, HostStopFuture, ReadyFuture
from mesh_core._configuration.config import effective
from mesh_core._configuration.values import is_module_name
from mesh_core._core import Region, Targets
from mesh_core._errors import MeshStopped
from mesh_core._meshes.actor_mesh import ActorMesh, check_class
from mesh_core._meshes.host_requests import ask_hosts, preload_on, replace_host, start_again
from mesh_core._meshes.mesh_place import (
    AGENT_WINDOW,
    ENDED,
    check_owned,
    epoch_of,
    index_in,
    owner_here,
)
from mesh_core._meshes.patches import replacement_of
from mesh_core._meshes.placed_mesh import ContextMesh, PlacedMesh
from mesh_core._meshes.proc_table import ProcTable
from mesh_core._meshes.replacement import replace_lost
from mesh_core._meshes.spawn_callbacks import tell_of_spawn
from mesh_core._meshes.spawn_checks import (
    check_arguments,
    check_name_and_class,
    checked_dims,
    modules_in_use,
    requested_dims,
)
from mesh_core._meshes.spawn_request import SpawnRequest
from mesh_core._meshes.start_request import StartRequest
from mesh_core._observability.events import recorder
from mesh_core._processes.byte_size import parse_memory_limit
from mesh_core._processes.command import BootstrapCommand
from mesh_core._runtime.handle_job import runtime_of_job
from mesh_core._runtime.runtime import is_running, runtime
from mesh_core._serialization.pickler import encode_request, encode_value
from mesh_core._serialization.wire import SPAWN
from mesh_core._shapes.shape import Point
from mesh_core._supervision.policy import RestartPolicy
from mesh_core._tensor_engine import tensor_engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Literal, Self

    from mesh_core._calls.future import Future
    from mesh_core._meshes.pool import ProcPool
    from mesh_core._runtime.runtime import Runtime

__all__ = ["HostMesh", "ProcMesh", "this_host", "this_proc"]

A = TypeVar("A", bound=Actor)
P = ParamSpec("P")
# The host of the program itself.
_PROGRAM_HOST = (0,)


class HostMesh(ContextMesh):
    """Machines. `this_host()` is the one on which the caller runs."""

    def __init__(
        self,
        hosts: tuple[int, ...],
        region: Region,
        command: BootstrapCommand | None,
        job: bytes | None = None,
    ) -> None:
        self._hosts = hosts
        self._region = region
        self._command = command
        # The host of the program belongs to every job of the program, so its handle is bound to no
        # job.
        is_anywhere = hosts == _PROGRAM_HOST
        self._job = None if is_anywhere else job or runtime().identity.job

    def _with_region(self, region: Region) -> Self:
        return type(self)(self._hosts, region, self._command, self._job)

    @property
    def _is_over(self) -> bool:
        """Whether the job of these hosts has ended."""
        if self._job is None:
            return False
        return not is_running() or runtime().identity.job != self._job

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "spawn":
                raise AttributeError(
                    "a HostMesh has no 'spawn': start processes on the hosts first, as in "
                    'hosts.spawn_procs({"gpus": 4}).spawn(...)'
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _require_job(self) -> None:
        """Check that the job of these hosts has not ended; another job may reuse their numbers.

        Raises:
            ForeignHandle: The job has ended.
        """
        if self._job is not None:
            runtime_of_job(self._job, "host mesh")

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | int | None = None,
        bootstrap: Callable[[], Awaitable[None] | None] | None = None,
        name: str | None = None,
        proc_bind: Sequence[Mapping[str, str]] | Mapping[str, str] | None = None,
        bootstrap_command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None = None,
        memory_limit: int | str | None = None,
        **dims: int,
    ) -> ProcMesh:
        """Start processes on every host and return before they run.

        `spawn_procs({"gpus": 4})`, `spawn_procs(gpus=4)` and `spawn_procs(4)` start four processes
        per host; only the dimension of the last one is named `procs`.

        Args:
            per_host: Dimensions to add, with their sizes, or the number of processes. Default: one
                process per host.
            bootstrap: A plain or `async` function that runs once in each process before any actor.
            name: The name for logs and errors.
            proc_bind: Processors, memory nodes and accelerators for each process of a host, or one
                mapping for all of them. Keys: `cpus` and `physcpubind` (processors), `cpunodebind`
                and `membind` (memory nodes), and `gpus`, with values such as `"0-3,8"`. The value
                `"auto"` gives each process its share of the host: `{"gpus": "auto"}`.
            bootstrap_command: The command to execute instead of a fork of the warm template, or a
                function that returns it for a position in the mesh.
            memory_limit: The memory that each process may use together with its child processes:
                bytes, or text such as `"8GiB"`. At 90%, the program logs a warning. At the limit,
                the process is killed, and its calls raise `ProcDied` with the reason. Default: no
                limit.
            **dims: More dimensions to add.

        Raises:
            TypeError: `per_host` is neither a number nor a mapping, or an option does not exist.
            ValueError: A size is not a positive integer, a dimension name is taken, the length of
                `proc_bind` is not the number of processes per host, or `memory_limit` is not a size
                of at least 16 MiB.
            RuntimeError: Mesh is shut down.
            ForeignHandle: The hosts belong to a job of this program that has ended.
        """
        self._require_job()
        dims = checked_dims(requested_dims(per_host, dims), self._region.labels)
        count = 1
        for size in dims.values():
            count *= size
        if isinstance(proc_bind, Mapping):
            proc_bind = [proc_bind] * count
        if proc_bind is not None and len(proc_bind) != count:
            raise ValueError(
                f"proc_bind has {len(proc_bind)} entries for {count} processes of a host: "
                "give one for each"
            )
        limit_bytes = None if memory_limit is None else parse_memory_limit(memory_limit)
        current = runtime()
        region = Region.row_major(
            [*self._region.labels, *dims], [*self._region.sizes, *dims.values()]
        )
        hosts, host_name = self._reserve(count)
        table = ProcTable(
            current.engine.new_port(),
            name or "procs",
            hosts,
            count,
            region,
            owner_here(),
            host_name,
            self._command,
        )
        mesh = ProcMesh(table, region)
        commands = _commands(bootstrap_command or self._command, mesh)
        setup = b"" if bootstrap is None else encode_callable(bootstrap)
        preload = modules_in_use() if current.is_root else ()
        binds: list[Mapping[str, str]] | None = None
        if proc_bind is not None:
            binds = [dict(bind) for bind in proc_bind]
        config = effective().as_mapping()
        early = recorder.early_events_max()
        request = StartRequest(table, setup, commands, binds, config, preload, early, limit_bytes)
        current.start_requests[table.uid] = request
        policy = RestartPolicy("never")
        current.ownership.announce(table.owner[1], mesh, policy)
        ask_hosts(this_proc(), [host for host, _ in hosts], "start", request)
        current.ownership.spawned(table.owner[1], mesh, policy)
        tell_of_spawn(mesh)
        return mesh

    def pool(
        self,
        procs: int,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        retries: int = 0,
        name: str = "pool",
    ) -> ProcPool:
        """Start processes that run functions, as a `concurrent.futures.Executor`.

        Args:
            procs: Number of processes per host.
            initializer: A function that runs in each process at its start.
            initargs: The arguments of the initializer.
            retries: How often a function is run again if its process dies while it runs. Use it
                only for functions that may run more than once.
            name: The name for logs and errors.

        Raises:
            ValueError: `procs` is not positive, or `retries` is negative.
            RuntimeError: Mesh is shut down.

        Example:
            >>> with this_host().pool(8) as pool:
            ...     sizes = list(pool.map(os.path.getsize, paths))
        """
        # `concurrent.futures` loads multiprocessing, which few programs need.
        from mesh_core._meshes.pool import ProcPool  # noqa: PLC0415

        return ProcPool(
            self, procs, initializer=initializer, initargs=initargs, retries=retries, name=name
        )

    def preload(self, *modules: str) -> None:
        """Start to import modules on every host, for processes that are started later.

        Returns immediately. A module that takes long to import, such as torch, is otherwise
        imported twice one after the other: by the program, and then for its first process. Call
        this before the program imports it: both imports then take place at the same time. Standby
        workers import installed packages, too, so that a host that replaces another one need not.

        Args:
            *modules: The names of the modules. One that cannot be imported before a fork, or that
                does not exist on a host, is left to the processes that need it.

        Raises:
            ValueError: One of the names is not the name of a module.
            ForeignHandle: The hosts belong to a job of this program that has ended.

        Example:
            >>> from mesh_core import this_host
            >>> this_host().preload("torch")
            >>> import torch
        """
        for name in modules:
            if not is_module_name(name):
                raise ValueError(f"{name!r} is not the name of a module")
        self._require_job()
        preload_on([self._hosts[rank] for rank in self._region], modules)

    def _reserve(self, count: int) -> tuple[tuple[tuple[int, int], ...], str]:
        hosts = [self._hosts[rank] for rank in self._region]
        answers = ask_hosts(this_proc(), hosts, "reserve", count)
        placed = [(host, first) for host, (first, _) in zip(hosts, answers, strict=True)]
        return tuple(placed), answers[-1][1] if answers else ""

    def with_python_executable(self, path: str) -> HostMesh:
        """Return the same hosts with another interpreter for their processes.

        Processes that actors in them spawn on their `this_host()` use that interpreter, too.
        """
        command = BootstrapCommand.default()
        changed = BootstrapCommand(path, args=command.args, env=command.env)
        return HostMesh(self._hosts, self._region, changed, self._job)

    @property
    def initialized(self) -> Future[Literal[True]]:
        """Done when every host can be reached; raises `HostDied` for a host that cannot."""
        self._require_job()
        agents = self._agents()
        reply = runtime().call_agents(agents._targets(), "ready")
        return AgentFuture(reply, agents, "attach", value=True)

    @property
    def worker_ids(self) -> tuple[str, ...]:
        """The id of the worker that serves each host, for `attach_to_workers(worker_ids=)`.

        Available in the program. The id changes when another worker replaces the first one. It is
        empty for the host of the program and for hosts that have not joined.
        """
        if self._is_over or not is_running():
            return ("",) * len(self)
        places = runtime().places
        return tuple(places.worker_id(self._hosts[rank]) for rank in self._region)

    def _agents(self) -> ProcMesh:
        """Return the agents of these hosts as a mesh, by whose ranks failures are reported."""
        hosts = tuple((self._hosts[at], 0) for at in self._region)
        region = Region.row_major(self._region.labels, self._region.sizes)
        owner = owner_here()
        table = ProcTable(0, "hosts", hosts, 1, region, owner, runtime().identity.host_name)
        return ProcMesh(table, region)

    @property
    def host_epoch(self) -> int:
        """A number that increases whenever the machine of one of the hosts is replaced."""
        return epoch_of(self._hosts[rank] for rank in self._region)

    def replace(self, rank: int | Point, worker: str | None = None) -> None:
        """Replace a dead machine by another one, with everything that the caller had on it.

        Returns when the machine has joined. The caller's processes and their actors are started
        there again. All handles of hosts, processes and actors stay valid: messages sent from now
        on reach the new machine, and no message from the old machine is accepted any more.

        Args:
            rank: The host to replace.
            worker: The address of the worker on the other machine. Default: a standby worker or, if
                none is left, the previous worker if it is back.

        Raises:
            IndexError: The rank does not exist.
            RuntimeError: The host is alive, was shut down, or is the host of the program.
            ValueError: The address is malformed, or refers to another machine and no credentials
                are set.
            HostDied: No worker is available; the message contains the reason.
            ForeignHandle: The hosts belong to a job of this program that has ended.
        """
        self._require_job()
        host = self._hosts[self._region.rank_at(index_in(self, rank))]
        replace_host(this_proc(), host, worker, may_return=True, is_urgent=False)
        _revive_all(host)

    def stop(self) -> Future[None]:
        """Stop every process that the caller has started on these hosts."""
        if self._is_over:
            return ENDED
        owner = owner_here()[1]
        mine = {self._hosts[rank] for rank in self._region}
        meshes = [
            mesh
            for mesh in runtime().ownership.children_of(owner)
            if isinstance(mesh, ProcMesh) and mine & {host for host, _ in mesh._table.hosts}
        ]
        return EndFuture([mesh.stop() for mesh in reversed(meshes)], runtime().ownership)

    def shutdown(self) -> Future[None]:
        """Stop every process on these hosts and release their workers from the job.

        The local host is available again on its next use. A worker that runs until it is shut down
        exits; any other worker waits for the next job.
        """
        if self._is_over:
            return ENDED
        return EndFuture([self.stop()], runtime().ownership, self._dismiss)

    def detach(self) -> Future[None]:
        """Stop every process of the caller on these hosts and release their workers.

        The workers wait for the next job, including those that run until they are shut down.
        """
        if self._is_over:
            return ENDED
        return EndFuture([self.stop()], runtime().ownership, self._leave)

    def _dismiss(self) -> None:
        runtime().dismiss_all([self._hosts[rank] for rank in self._region], is_shutdown=True)

    def _leave(self) -> None:
        runtime().dismiss_all([self._hosts[rank] for rank in self._region])

    _end_context = shutdown

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, HostMesh)
            and self._job == other._job
            and self._hosts == other._hosts
            and self._region == other._region
        )

    def __hash__(self) -> int:
        return hash((self._hosts, self._region))

    def __repr__(self) -> str:
        return f"<HostMesh {self.extent}>"

    def __reduce__(self) -> Any:
        job = runtime().identity.job if self._job is None else self._job
        return _restore_host_mesh, (job, self._hosts, self._region, self._command)


def _restore_host_mesh(
    job: bytes, hosts: tuple[int, ...], region: Region, command: BootstrapCommand | None
) -> HostMesh:
    """Unpickle a handle; raises `ForeignHandle` in a process of another job."""
    runtime_of_job(job, "host mesh")
    return HostMesh(hosts, region, command, job)


class ProcMesh(PlacedMesh, ContextMesh):
    """Processes on hosts, on which actors are spawned."""

    # The function that unpickles an `ActorMesh`.
    _restore_actors: Callable[..., ActorMesh[Any]]

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

        The process need not reply, and may be stopped. Its death is reported as any other, as
        `ProcDied`, after this function has returned. Nothing happens if the process is dead.

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

    def _revive(self, index: int) -> Future[Any]:
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
            return HostMesh(hosts, Region.row_major([], []), command)
        return HostMesh(hosts, Region.row_major(["hosts"], [len(hosts)]), command)

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


def _revive_all(host: int) -> None:
    """Start everything again that the caller had on a host."""
    current = runtime()
    for mesh in current.ownership.children_of(owner_here()[1]):
        if not isinstance(mesh, ProcMesh) or mesh._uid in current.stopped_meshes:
            continue
        for rank in range(len(mesh)):
            if mesh._proc_of(rank) >> 32 == host:
                mesh._replace_lost(rank)


def this_host() -> HostMesh:
    """Return the host of the caller, as a mesh of one without dimensions.

    In a process that was spawned on hosts with another Python executable, processes of the returned
    mesh use that executable, too.
    """
    identity = runtime().identity
    command = None if identity.table is None else identity.table.command
    return HostMesh((identity.host,), Region.row_major([], []), command)


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


def _commands(
    command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None, mesh: ProcMesh
) -> list[BootstrapCommand] | None:
    if command is None:
        if effective().process_start == "exec":
            return [BootstrapCommand.default()] * len(mesh)
        return None
    if isinstance(command, BootstrapCommand):
        return [command] * len(mesh)
    return [command(mesh._point(rank)) for rank in range(len(mesh))]


def encode_callable(function: Callable[[], Any]) -> bytes:
    """Pickle a function to run in another process."""
    return encode_value(function, 1 << 60)[0]
