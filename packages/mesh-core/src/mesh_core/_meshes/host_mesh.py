"""Machines as an array: `HostMesh`, on which processes are started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh_core._calls.task_future import AgentFuture, EndFuture
from mesh_core._configuration.config import effective
from mesh_core._configuration.values import is_module_name
from mesh_core._core import Region
from mesh_core._meshes.host_requests import ask_hosts, drain_host, preload_on, replace_host
from mesh_core._meshes.mesh_place import ENDED, epoch_of, index_in, owner_here
from mesh_core._meshes.placed_mesh import ContextMesh
from mesh_core._meshes.proc_mesh import ProcMesh, this_proc
from mesh_core._meshes.proc_table import ProcTable
from mesh_core._meshes.spawn_callbacks import tell_of_spawn
from mesh_core._meshes.spawn_checks import checked_dims, modules_in_use, requested_dims
from mesh_core._meshes.start_request import StartRequest
from mesh_core._observability.events import recorder
from mesh_core._processes.byte_size import parse_memory_limit
from mesh_core._processes.command import BootstrapCommand
from mesh_core._runtime.handle_job import runtime_of_job
from mesh_core._runtime.runtime import is_running, runtime
from mesh_core._serialization.pickler import encode_value
from mesh_core._shapes.shape import Point
from mesh_core._supervision.policy import RestartPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Literal, Self

    from mesh_core._calls.future import Future
    from mesh_core._meshes.pool import ProcPool

__all__ = ["HostMesh", "this_host"]

# The host of the program itself.
_PROGRAM_HOST = (0,)


class HostMesh(ContextMesh):
    """A mesh of machines; `this_host()` returns the machine of the caller."""

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
        setup = b"" if bootstrap is None else encode_value(bootstrap, 1 << 60)[0]
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
        """Start to import modules on every host, so that processes start faster later.

        Returns immediately. A module that takes long to import, such as torch, is otherwise
        imported twice in sequence: by the program, and then for its first process. Call this before
        the program imports the module: both imports then run concurrently. Standby workers import
        installed packages too, so that a replacement host does not have to.

        Args:
            *modules: The names of the modules. If a module cannot be imported before a fork, or
                does not exist on a host, the processes that need it import it themselves.

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

        Processes that their actors spawn on `this_host()` also use that interpreter.
        """
        command = BootstrapCommand.default()
        changed = BootstrapCommand(path, args=command.args, env=command.env)
        return HostMesh(self._hosts, self._region, changed, self._job)

    @property
    def initialized(self) -> Future[Literal[True]]:
        """Done when every host can be reached; raises `HostDied` for a host that cannot.

        It does not wait for standby workers, which are reserved in the background.
        """
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
        """Return the agents of these hosts as a mesh; failures are reported by its ranks."""
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
        """Replace a dead machine by another one, and restart the caller's processes there.

        Returns when the machine has joined. The caller's processes and their actors are started
        there again. All handles of hosts, processes and actors stay valid: messages sent from now
        on reach the new machine, and no message from the old machine is accepted any more.

        Args:
            rank: The host to replace.
            worker: The address of the worker on the other machine. Default: a standby worker or, if
                none is left, the previous worker if it is available again.

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
        _replace_procs(host)

    def drain(self, rank: int | Point, worker: str | None = None, *, timeout: float = 60.0) -> None:
        """Move a host to another machine while its actors are in use, without a failed call.

        Returns when its processes run on the other machine, with the state that their actors had.
        All handles stay valid. During the move, calls to the actors wait; each is executed once,
        before or after the move. The old machine then leaves the job.

        An actor moves between two messages, as a pickled object: define `__getstate__` and
        `__setstate__` for attributes that cannot be pickled. Everything else in a process, such as
        module variables and threads that the program started, does not move; `bootstrap` runs
        again.

        Args:
            rank: The host to move.
            worker: The address of the worker on the other machine. Default: a standby worker.
            timeout: The maximum time until no endpoint runs on the host and the state of its actors
                has been read, in seconds.

        Raises:
            DrainFailed: An endpoint did not return in time, the state of an actor cannot be
                pickled, or the machine of the program has too little memory for the state of the
                host, which passes through it. The host continues to serve.
            HostDied: No machine is available, or one of the two has died; the message contains the
                reason.
            IndexError: The rank does not exist.
            RuntimeError: The host was shut down, or is the host of the program.
            ValueError: The address is malformed.
            ForeignHandle: The hosts belong to a job of this program that has ended.
        """
        self._require_job()
        host = self._hosts[self._region.rank_at(index_in(self, rank))]
        drain_host(this_proc(), host, worker, timeout)

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
        return EndFuture([self.stop()], runtime().ownership, self._release)

    def detach(self) -> Future[None]:
        """Stop every process of the caller on these hosts and release their workers.

        All workers wait for the next job, even workers that run until they are shut down.
        """
        if self._is_over:
            return ENDED
        return EndFuture([self.stop()], runtime().ownership, self._leave)

    def _release(self) -> None:
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


# `ProcMesh` creates the mesh of its hosts, and its module cannot import this one.
ProcMesh._host_mesh = HostMesh


def _restore_host_mesh(
    job: bytes, hosts: tuple[int, ...], region: Region, command: BootstrapCommand | None
) -> HostMesh:
    """Unpickle a handle; raises `ForeignHandle` in a process of another job."""
    runtime_of_job(job, "host mesh")
    return HostMesh(hosts, region, command, job)


def _replace_procs(host: int) -> None:
    """Restart all processes that the caller had on a host."""
    current = runtime()
    for mesh in current.ownership.children_of(owner_here()[1]):
        if not isinstance(mesh, ProcMesh) or mesh._uid in current.stopped_meshes:
            continue
        for rank in range(len(mesh)):
            if mesh._proc_of(rank) >> 32 == host:
                mesh._replace_lost(rank)


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


def this_host() -> HostMesh:
    """Return the host of the caller, as a mesh of one without dimensions.

    In a process that was spawned on hosts with another Python executable, processes of the returned
    mesh also use that executable.
    """
    identity = runtime().identity
    command = None if identity.table is None else identity.table.command
    return HostMesh((identity.host,), Region.row_major([], []), command)
