"""This process as a member of a job: its engine, its actors, its agent.

There is one runtime in a process. In a program it starts on first use, and the process then also
looks after the local host; in a process of a mesh `mesh_core._processes.launch` starts it before
anything of the user's runs.
"""

from __future__ import annotations

import os
import threading

from mesh_core._configuration.config import effective
from mesh_core._core import Engine
from mesh_core._hosts.epoch import EPOCH_SHIFT
from mesh_core._serialization.pickler import decode, encode
from mesh_core._serialization.wire import AGENT, CALL, proc_id, proc_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import Any

    from mesh_core._actors.cell import ActorCell
    from mesh_core._actors.guards import Guard
    from mesh_core._calls.task_future import EndFuture
    from mesh_core._core import Message, Targets
    from mesh_core._failover.journal import Journal
    from mesh_core._hosts.address import Address
    from mesh_core._hosts.agent import HostAgent, StartOrder
    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._meshes.proc_table import ProcTable
    from mesh_core._supervision.ownership import Ownership
    from mesh_core._supervision.stop_watchdog import StopWatch

__all__ = ["Identity", "Runtime", "adopt", "follow", "is_running", "runtime", "value_of"]


class Identity:
    """Who a process is: what its host tells it at birth.

    Attributes:
        host: The number of the host in the job.
        host_name: What the machine calls itself.
        slot: The place on the host; 0 looks after it.
        incarnation: How many processes had the slot before; above `EPOCH_SHIFT` the epoch of the
            host.
        job: The job, 16 bytes.
        token: Proof of belonging to it, 32 bytes.
        directory: Where the host's processes find each other.
        table: The process mesh that this process belongs to, and its rank there.
        outlives_root: What the program owns here waits for a successor when the program is lost.
    """

    __slots__ = (
        "directory",
        "host",
        "host_name",
        "incarnation",
        "job",
        "outlives_root",
        "rank",
        "slot",
        "table",
        "token",
    )

    def __init__(
        self,
        *,
        host: int,
        host_name: str,
        slot: int,
        incarnation: int,
        job: bytes,
        token: bytes,
        directory: Path,
        table: ProcTable | None = None,
        rank: int = 0,
        outlives_root: bool = False,
    ) -> None:
        self.host: int = host
        self.host_name: str = host_name
        self.slot: int = slot
        self.incarnation: int = incarnation
        self.job: bytes = job
        self.token: bytes = token
        self.directory: Path = directory
        self.table: ProcTable | None = table
        self.rank: int = rank
        self.outlives_root: bool = outlives_root


class Runtime:
    """One process of a job."""

    def __init__(self, identity: Identity) -> None:
        config = effective()
        self.identity = identity
        self.me: int = proc_id(identity.host, identity.slot)
        self.pid: int = os.getpid()
        self.is_root: bool = self.me == 0
        # Whether this process proves itself to other hosts; only those that look after a host do.
        self.has_credentials: bool = False
        # The worker through which others are reached, where the program has said so.
        self.gateway: Address | None = None
        # What the program owns, noted at its hosts for a successor, and what is noted here.
        self.journal: Journal | None = None
        self.kept: dict[int, bytes] = {}
        self.actors: dict[int, ActorCell] = {}
        # What is put around endpoints; one at most.
        self.guards: list[Guard] = []
        # Actors that there is one of in the job, by name: the root has them.
        self.controllers: dict[str, ActorMesh[Any]] = {}
        self.host_agent: HostAgent | None = None
        # The job has ended: what is left of it in the program is of no more use.
        self.is_over = False
        # This process is a fork of the one that the runtime belongs to.
        self.is_forsaken = False
        # Meshes that this process has stopped, with the future of their end.
        self.stopped_meshes: dict[int, EndFuture] = {}
        # Why, of those that somebody else has asked it to stop.
        self.stop_reasons: dict[int, str] = {}
        # What spawned each mesh: pickled order, large parts, window; for spawning a rank again.
        self.spawn_orders: dict[int, tuple[bytes, list[memoryview], int]] = {}
        # What started the processes of each mesh; for starting one again on another machine.
        self.start_orders: dict[int, StartOrder] = {}
        # Hosts that other machines have taken the place of, with how many were there before.
        self.host_epochs: dict[int, int] = {}
        # When the hosts leave whose workers were told to end; only the program has any.
        self.leaving_hosts: dict[int, float] = {}
        self.engine: Engine = Engine(
            identity.host,
            identity.slot,
            identity.incarnation,
            identity.job,
            identity.token,
            str(identity.directory),
            config.link_outbox_bytes_max,
            config.segment_pool_bytes_max,
            self._on_cut_off,
        )
        self.engine.set_fanout(config.cast_fanout)
        if identity.slot:
            # Who looks after a host listens once there is somebody to listen to.
            self.engine.listen()
        from mesh_core._hosts.places import Places
        from mesh_core._supervision.ownership import Ownership

        # Hosts that were taken into the job; only the program has any.
        self.places: Places = Places(self)
        self.ownership: Ownership = Ownership(self)
        from mesh_core._supervision.stop_watchdog import StopWatch

        self.stop_watch: StopWatch = StopWatch(self)

    def start_agent(self) -> None:
        """Starts the thread that spawns and stops actors here."""
        from mesh_core._actors.agent import Agent

        self.agent: Agent = Agent(self)
        thread = threading.Thread(target=self.agent.run, name="mesh-agent", daemon=True)
        thread.start()

    def address(self, port: int) -> str:
        """Names a receiver of this process for humans."""
        return f"{self.identity.host_name}/{proc_name(self.me)}:{port}"

    def host_agent_proc(self) -> int:
        """Gives the process that looks after this host."""
        return proc_id(self.identity.host, 0)

    @property
    def generation(self) -> int:
        """Of the program: how many have run the job before."""
        return self.identity.incarnation >> EPOCH_SHIFT

    def start_journal(self) -> Journal:
        """Has what the program owns noted from now on; gives the journal."""
        with _lock:
            if self.journal is None:
                from mesh_core._failover.journal import Journal

                self.journal = Journal(self)
                self.ownership.note_all(self.journal)
            return self.journal

    def dismiss(self, host: int, *, is_shutdown: bool = False) -> None:
        """Has a host leave the job, whose processes have ended."""
        if self.places.leaving(host):
            if self.journal is not None:
                self.journal.left(host)
            self.ask_agent(proc_id(host, 0), "leave", is_shutdown, timeout=_FAREWELL_S)

    def dismiss_all(self, hosts: Iterable[int] | None = None, *, is_shutdown: bool = False) -> None:
        """Has hosts leave the job, all when none are named.

        Those that are reached through another go before it.
        """
        if hosts is not None:
            hosts = list(hosts)
            self.places.unwant(hosts, is_shutdown=is_shutdown)
        living = self.places.living()
        chosen = set(living if hosts is None else hosts)
        for host in living:
            if host in chosen:
                self.dismiss(host, is_shutdown=is_shutdown)

    def forget_orders(self, uid: int) -> None:
        """Nothing of a mesh will be started again."""
        self.spawn_orders.pop(uid, None)
        self.start_orders.pop(uid, None)
        if self.journal is not None:
            self.journal.drop(uid)

    def is_agent_of(self, proc: int) -> bool:
        """Says whether this process looks after the host that a process is on."""
        return self.host_agent is not None and proc >> 32 == self.identity.host

    def call_agents(
        self, targets: Targets, method: str, *args: Any, timeout: float | None = None
    ) -> int:
        """Calls a method of the agents of some processes; gives the port of the answers."""
        body, buffers = encode(args, {}, effective().segment_threshold_bytes)
        return self.engine.call(
            CALL, targets, AGENT, method.encode(), body, buffers, 1 << 31, timeout, True
        )

    def ask_agent(self, proc: int, method: str, *args: Any, timeout: float | None = None) -> Any:
        """Calls a method of one agent and waits; None when it does not answer in time."""
        from mesh_core._core import Targets

        reply = self.call_agents(Targets([(proc, 0)]), method, *args, timeout=timeout)
        answers = self.engine.wait(reply, None)
        return None if answers is None or answers[0].code else value_of(answers[0])

    def tell_agent(self, proc: int, method: str, *args: Any) -> None:
        """Sends a message to one agent and waits for nothing."""
        self.tell_agents([proc], method, *args)

    def tell_agents(self, procs: Sequence[int], method: str, *args: Any) -> None:
        """Sends the same message to several agents and waits for nothing."""
        from mesh_core._core import Targets

        targets = Targets([(proc, rank) for rank, proc in enumerate(procs)])
        body, buffers = encode(args, {}, effective().segment_threshold_bytes)
        self.engine.send(CALL, targets, AGENT, method.encode(), body, buffers, 1 << 31, 0, True)

    def note_stopped(self, uid: int, future: EndFuture, reason: str | None) -> None:
        """Notes that this process stops a mesh, and why, where somebody else has asked for it."""
        if reason is not None:
            self.stop_reasons[uid] = reason
        self.stopped_meshes[uid] = future

    def observed(self, failure_id: int, owner_proc: int) -> None:
        """A caller in this process has been given a failure: it need not go up any more."""
        self.ownership.observed(failure_id)
        if owner_proc != self.me:
            self.tell_agent(owner_proc, "observed", failure_id)

    def _on_cut_off(self, is_orphaned: bool) -> None:
        """Ends this process: nobody can reach it any more.

        Args:
            is_orphaned: The agent of this host has ended; else the descriptors of this process
                were closed.
        """
        if not is_orphaned:
            # Past sys.stderr, which the code that closed them may have replaced.
            try:
                os.write(2, _CLOSED_DESCRIPTORS)
            except OSError:
                pass  # That was closed as well.
        os._exit(1)


# How long a worker may take to hear that it is free.
_FAREWELL_S = 1.0
_CLOSED_DESCRIPTORS = (
    b"mesh: this process ends because it closed its connections: code in it has closed descriptors "
    b"that it did not open, by os.closerange() perhaps\n"
)

_lock = threading.RLock()
_current: Runtime | None = None
_followers: list[Callable[[Runtime | None], None]] = []


def runtime() -> Runtime:
    """Gives the runtime of this process, starting the one of a program on first use.

    Raises:
        RuntimeError: The process is a fork of one that uses Mesh.
    """
    if _current is not None:
        return _current
    return _boot()


def is_running() -> bool:
    """Says whether there is a runtime, without starting one."""
    return _current is not None


def adopt(new: Runtime | None) -> None:
    """Makes a runtime this process's own; None ends it."""
    global _current
    _current = new
    for tell in _followers:
        tell(new)


def follow(tell: Callable[[Runtime | None], None]) -> None:
    """Calls back with every runtime that this process gets, and with None when one has ended."""
    _followers.append(tell)


def _boot() -> Runtime:
    with _lock:
        if _current is None:
            from mesh_core._program.root import start_root

            start_root()
        assert _current is not None
        return _current


def value_of(message: Message) -> Any:
    """Unpickles the body of a message with its large parts."""
    if message.has_parts:
        return decode(message.body, runtime().engine.buffers(message))
    return decode(message.body)


# Of the process that this one is a fork of: never freed here, for its links are shared.
_forsaken: list[Runtime] = []


def _after_fork() -> None:
    """A fork shares no thread and no link with us: it starts from nothing, if at all."""
    global _current, _lock
    if _current is not None:
        _forsaken.append(_current)
        _current.is_forsaken = _current.is_over = True
        _current.engine.forsake()
    _current = None
    _lock = threading.RLock()


def _before_fork() -> None:
    """What was received and is still in use is copied: its senders wait only for us."""
    if _current is not None:
        _current.engine.prepare_fork()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
