"""This process as a member of a job: its engine, its actors and its agent.

A process has one runtime. In a program it starts on first use, and the process is then also the
agent of the local host. In a process of a mesh, `mesh_core._program.launch` starts it before any
user code runs. `mesh_core._program.assembly` creates the components that a runtime refers to, so
that every other module can import this one.
"""

from __future__ import annotations

import os
import threading

from mesh_core._configuration.config import effective
from mesh_core._core import Engine, Targets
from mesh_core._runtime.epoch import EPOCH_SHIFT
from mesh_core._runtime.open_message import OpenMessage
from mesh_core._serialization.pickler import decode, encode
from mesh_core._serialization.wire import AGENT, CALL, proc_id, proc_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from mesh_core._actors.agent import Agent
    from mesh_core._actors.cell import ActorCell
    from mesh_core._actors.interceptors import EndpointInterceptor
    from mesh_core._calls.task_future import EndFuture
    from mesh_core._core import Message
    from mesh_core._hosts.address import Address
    from mesh_core._hosts.agent import HostAgent
    from mesh_core._hosts.journal import Journal
    from mesh_core._hosts.places import Places
    from mesh_core._meshes.actor_mesh import ActorMesh
    from mesh_core._meshes.start_request import StartRequest
    from mesh_core._recording.collector import CaseCollector
    from mesh_core._recording.recording import ProcessRecording
    from mesh_core._recording.save_requests import SaveRequests
    from mesh_core._runtime.identity import Identity
    from mesh_core._supervision.lifecycle import Lifecycle
    from mesh_core._supervision.ownership import Ownership
    from mesh_core._supervision.stop_watchdog import StopWatch

__all__ = [
    "Runtime",
    "adopt",
    "follow",
    "is_running",
    "runtime",
    "runtime_if_any",
    "start_with",
    "value_of",
]


class Runtime:
    """One process of a job.

    Attributes:
        agent: Spawns and stops the actors of this process.
        lifecycle: How this process ends.
        ownership: The meshes that the actors of this process own.
        places: The attached hosts; used in the program only.
        stop_watch: The stops of actors that this process waits for.
    """

    agent: Agent
    ownership: Ownership
    places: Places
    stop_watch: StopWatch

    def __init__(
        self, identity: Identity, lifecycle: Lifecycle, engine: Engine | None = None
    ) -> None:
        config = effective()
        self.identity = identity
        self.lifecycle = lifecycle
        self.me: int = proc_id(identity.host, identity.slot)
        self.pid: int = os.getpid()
        self.is_root: bool = self.me == 0
        # Whether this process authenticates itself to other hosts; only agents do.
        self.has_credentials: bool = False
        # The worker that forwards connections to others, if the program has set one.
        self.gateway: Address | None = None
        # `journal` records everything that the program owns, for a successor. `kept` has the
        # entries that this host stores.
        self.journal: Journal | None = None
        self.kept: dict[int, bytes] = {}
        self.actors: dict[int, ActorCell] = {}
        # The recording of the actors of this process, if they are recorded.
        self.recording: ProcessRecording | None = None
        # Saves the recordings of failures; used in the program only.
        self.case_collector: CaseCollector | None = None
        # Accepts requests of commands to save a case; used in the program only.
        self.save_requests: SaveRequests | None = None
        # Wrappers of endpoints; at most one.
        self.interceptors: list[EndpointInterceptor] = []
        # Actors that are unique in the job, by name; only the root has them.
        self.controllers: dict[str, ActorMesh[Any]] = {}
        self.host_agent: HostAgent | None = None
        # The job has ended, so its remaining objects in the program are unusable.
        self.is_over = False
        # This process is a fork of the process that owns the runtime.
        self.is_aborted = False
        # Meshes that this process has stopped, with the future of the stop.
        self.stopped_meshes: dict[int, EndFuture] = {}
        # The reasons of stops that another process has requested.
        self.stop_reasons: dict[int, str] = {}
        # The request that spawned each mesh (pickled request, large buffers, window), to respawn a
        # rank.
        self.spawn_requests: dict[int, tuple[bytes, list[memoryview], int]] = {}
        # The request that started the processes of each mesh, to start one on another machine.
        self.start_requests: dict[int, StartRequest] = {}
        # The hosts whose machine was replaced, with their epochs.
        self.host_epochs: dict[int, int] = {}
        # The time at which hosts leave whose workers are shutting down; used in the program only.
        self.draining_hosts: dict[int, float] = {}
        #: The encoded failure of each host whose worker has left the job voluntarily.
        self.withdrawn_hosts: dict[int, bytes] = {}
        self.engine: Engine = engine or Engine(
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
            # An agent listens only once its host has processes that may connect.
            self.engine.listen()

    def start_agent(self) -> None:
        """Start the thread that spawns and stops actors in this process."""
        thread = threading.Thread(target=self.agent.run, name="mesh-agent", daemon=True)
        thread.start()

    def address(self, port: int) -> str:
        """Return a readable name for a receiver in this process."""
        return f"{self.identity.host_name}/{proc_name(self.me)}:{port}"

    def host_agent_proc(self) -> int:
        """Return the process that is the agent of this host."""
        return proc_id(self.identity.host, 0)

    @property
    def generation(self) -> int:
        """In the program: the number of programs that have run the job before."""
        return self.identity.incarnation >> EPOCH_SHIFT

    def dismiss(self, host: int, *, is_shutdown: bool = False) -> None:
        """Release a host from the job after its processes have ended."""
        if self.places.leaving(host):
            if self.journal is not None:
                self.journal.left(host)
            self.ask_agent(proc_id(host, 0), "leave", is_shutdown, timeout=_LEAVE_LIMIT_S)

    def dismiss_all(self, hosts: Iterable[int] | None = None, *, is_shutdown: bool = False) -> None:
        """Release hosts from the job; by default, all of them.

        Hosts behind a gateway are released before the gateway.
        """
        if hosts is not None:
            hosts = list(hosts)
            self.places.unwant(hosts, is_shutdown=is_shutdown)
        living = self.places.living()
        chosen = set(living if hosts is None else hosts)
        for host in living:
            if host in chosen:
                self.dismiss(host, is_shutdown=is_shutdown)

    def forget_requests(self, uid: int) -> None:
        """Drop the requests of a mesh that will not be started again."""
        self.spawn_requests.pop(uid, None)
        self.start_requests.pop(uid, None)
        if self.journal is not None:
            self.journal.drop(uid)

    def is_agent_of(self, proc: int) -> bool:
        """Return whether this process is the agent of the host that a process runs on."""
        return self.host_agent is not None and proc >> 32 == self.identity.host

    def call_agents(
        self, targets: Targets, method: str, *args: Any, timeout: float | None = None
    ) -> int:
        """Call a method of the agents of several processes; return the port of the replies."""
        body, buffers = encode(args, {}, effective().segment_threshold_bytes)
        return self.engine.call(
            CALL, targets, AGENT, method.encode(), body, buffers, 1 << 31, timeout, None
        )

    def ask_agent(self, proc: int, method: str, *args: Any, timeout: float | None = None) -> Any:
        """Call a method of one agent and wait; return None if it fails or times out."""
        reply = self.call_agents(Targets([(proc, 0)]), method, *args, timeout=timeout)
        answers = self.engine.wait(reply, None)
        return None if answers is None or answers[0].code else value_of(answers[0])

    def tell_agent(self, proc: int, method: str, *args: Any) -> None:
        """Send a message to one agent without waiting for a reply."""
        self.tell_agents([proc], method, *args)

    def tell_agents(self, procs: Sequence[int], method: str, *args: Any) -> None:
        """Send the same message to several agents without waiting for replies."""
        targets = Targets([(proc, rank) for rank, proc in enumerate(procs)])
        body, buffers = encode(args, {}, effective().segment_threshold_bytes)
        self.engine.send(CALL, targets, AGENT, method.encode(), body, buffers, 1 << 31, 0, None)

    def note_stopped(self, uid: int, future: EndFuture, reason: str | None) -> None:
        """Record that this process stops a mesh, with the reason if another one requested it."""
        if reason is not None:
            self.stop_reasons[uid] = reason
        self.stopped_meshes[uid] = future

    def observed(self, failure_id: int, owner_proc: int) -> None:
        """Record that a caller here received a failure, which must not propagate further."""
        self.ownership.observed(failure_id)
        if owner_proc != self.me:
            self.tell_agent(owner_proc, "observed", failure_id)

    def _on_cut_off(self, is_orphaned: bool) -> None:
        """Exit this process, because no other process can reach it any more.

        Args:
            is_orphaned: Whether the agent of this host has ended; otherwise the descriptors of this
                process were closed.
        """
        if not is_orphaned:
            # Bypasses `sys.stderr`, which the code that closed the descriptors may have replaced.
            try:
                os.write(2, _CLOSED_DESCRIPTORS)
            except OSError:
                pass  # Descriptor 2 was closed as well.
        os._exit(1)


# The time that a worker may take to receive its release.
_LEAVE_LIMIT_S = 1.0
_CLOSED_DESCRIPTORS = (
    b"mesh: this process ends because it closed its connections: code in it has closed descriptors "
    b"that it did not open, by os.closerange() perhaps\n"
)

_lock = threading.RLock()
_current: Runtime | None = None
_start: Callable[[], None] | None = None
_followers: list[Callable[[Runtime | None], None]] = []


def runtime() -> Runtime:
    """Return the runtime of this process; a program's runtime starts on first use.

    Raises:
        RuntimeError: The process is a fork of one that uses Mesh.
    """
    if _current is not None:
        return _current
    with _lock:
        if _current is None:
            assert _start is not None
            _start()
        assert _current is not None
        return _current


def runtime_if_any() -> Runtime | None:
    """Return the runtime of this process, without starting one."""
    return _current


def is_running() -> bool:
    """Return whether a runtime exists, without starting one."""
    return _current is not None


def start_with(start: Callable[[], None]) -> None:
    """Set the function that starts the runtime of a program on first use."""
    global _start
    _start = start


def adopt(new: Runtime | None) -> None:
    """Set the runtime of this process; None removes it."""
    global _current
    _current = new
    for tell in _followers:
        tell(new)


def follow(tell: Callable[[Runtime | None], None]) -> None:
    """Call a function with each new runtime of this process, and with None when one has ended."""
    _followers.append(tell)


def value_of(message: Message | OpenMessage) -> Any:
    """Unpickle the body of a message with its large buffers."""
    if message.has_parts:
        if isinstance(message, OpenMessage):
            return decode(message.body, message.opened)
        return decode(message.body, runtime().engine.buffers(message))
    return decode(message.body)


# Runtimes of the process that forked this one; never freed here, because the two processes share
# their connections.
_forsaken: list[Runtime] = []


def _after_fork() -> None:
    """Discard the runtime in a forked child, which shares no thread or link with its parent."""
    global _current, _lock
    if _current is not None:
        _forsaken.append(_current)
        _current.is_aborted = _current.is_over = True
        _current.engine.abort()
    _current = None
    _lock = threading.RLock()


def _before_fork() -> None:
    """Copy received buffers that are in use, because their senders wait only for this process."""
    if _current is not None:
        _current.engine.prepare_fork()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
