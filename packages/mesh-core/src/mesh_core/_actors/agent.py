"""Agent of a process: it spawns and stops actors, and handles events from the core.

The agent has one thread and one mailbox. The thread waits only for the next message; work that may
take long runs on a separate thread.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback

from mesh_core._actors.arrivals import Arrivals
from mesh_core._actors.controller import answer_controller
from mesh_core._actors.freezing import TakenStates
from mesh_core._actors.host_requests import LATER, HostRequests
from mesh_core._actors.move_requests import MoveRequests
from mesh_core._calls.deadlock import waiting_on
from mesh_core._calls.port_holders import (
    answer_port_held,
    answer_port_released,
    holder_died,
    port_held,
    port_released,
    ports_dropped,
    ports_recalled,
    ports_sent,
)
from mesh_core._calls.port_transit import drop_ports
from mesh_core._calls.reduction import cancel_reduction
from mesh_core._calls.unread_errors import warn_of_unread
from mesh_core._core import PortClosed, Targets
from mesh_core._logging.python_logging import set_level
from mesh_core._meshes.patches import inherit_patches, patch_host
from mesh_core._runtime.epoch import EPOCH_SHIFT
from mesh_core._runtime.runtime import value_of
from mesh_core._serialization.pickler import encode_value
from mesh_core._serialization.remote_error import encode_exception
from mesh_core._serialization.wire import (
    ACTOR_FAILED,
    AGENT,
    ANSWER,
    CALL,
    CANCEL,
    DIED,
    FAULT,
    INTERNAL,
    POST,
    RAISED,
    SPAWN,
    STOP,
    STOPPED,
)
from mesh_core._supervision.failure import FailureDetail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._actors.cell import ActorCell
    from mesh_core._actors.loading import Loading
    from mesh_core._calls.port_transit import Label
    from mesh_core._core import Message
    from mesh_core._runtime.runtime import Runtime

__all__ = ["LATER", "Agent"]

_BATCH_MAX = 64
# Kinds of messages that may carry ports; the core passes messages of these kinds that it drops to
# the agent.
_DROPPED = frozenset({ANSWER, CALL, POST})
_STOP = bytes([INTERNAL]) + STOP.encode() + b"\0"
# Methods that are served while an actor is loading, before the messages that arrived earlier.
_WHILE_LOADING = frozenset({b"wake", b"loaded", b"overdue", b"stop_actor"})
# Methods that other processes may call while the `bootstrap` of this process runs.
_WHILE_SETTING_UP = frozenset(
    {b"wake", b"waiting_on", b"patch", b"port_held", b"port_released"}
    | {b"answer_port_held", b"answer_port_released"}
)
# The process of the program. Its port 0 is the owner of the meshes that the program spawns.
ROOT = 0


class Agent(HostRequests, MoveRequests):
    """Handlers of the requests that other processes may send to this process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._engine = runtime.engine
        self._is_ending = False
        self._arrivals = Arrivals(runtime)
        # Messages deferred while an actor is loading or while `bootstrap` runs.
        self._held: list[Message] = []
        self._is_setting_up = False
        self._has_set_up_ended = False
        # The exception of the user's `bootstrap` function, if it raised one.
        self.setup_error: BaseException | None = None
        self._setup_failure: FailureDetail | None = None
        self._taken_states = TakenStates()

    def run(self) -> None:
        """Serve messages until the process ends, or until a running `bootstrap` has ended."""
        self._take_held()
        ownership, stop_watch = self._runtime.ownership, self._runtime.stop_watch
        while True:
            due = [s for s in (ownership.due_in_s(), stop_watch.due_in_s()) if s is not None]
            try:
                messages = self._engine.receive(AGENT, _BATCH_MAX, min(due, default=None))
            except PortClosed:
                return
            if ownership.due_in_s() == 0:
                ownership.tick()
            if stop_watch.due_in_s() == 0:
                stop_watch.tick()
            for message in messages:
                self._take(message)
            if self._has_set_up_ended:
                self._has_set_up_ended = False
                return

    def begin_set_up(self) -> None:
        """Defer messages of other processes; called before `run` is called for the first time."""
        self._is_setting_up = True

    def end_set_up(self, thread: threading.Thread) -> None:
        """End `run` on the thread that served messages during `bootstrap`, and join the thread."""
        self._tell_myself("set_up_ended")
        thread.join()
        self._is_setting_up = False

    def _take(self, message: Message) -> None:
        if message.kind in _DROPPED and message.to_port != AGENT:
            # The core dropped this message and passes it on because it carries ports.
            return drop_ports(message)
        if message.kind == FAULT:
            return warn_of_unread(message)
        if self._is_setting_up and self._waits_for_set_up(message):
            self._held.append(message)
            return
        loading = self._arrivals.loading
        if loading is not None and not self._cannot_wait(message, loading):
            self._held.append(message)
            return
        try:
            self._handle(message)
        except Exception as error:
            self._report(message, error)

    def _take_held(self) -> None:
        held, self._held = self._held, []
        for message in held:
            self._take(message)

    def _waits_for_set_up(self, message: Message) -> bool:
        """Return whether a message waits for the end of `bootstrap`, which itself may spawn."""
        if message.from_proc == self._runtime.me:
            return False
        if message.kind == DIED:
            # A channel that `bootstrap` uses must not wait for a process that has died.
            holder_died(message.from_proc, message.body)
            return True
        return message.kind != CALL or message.meta not in _WHILE_SETTING_UP

    def _cannot_wait(self, message: Message, loading: Loading) -> bool:
        """Return whether a message is served before the actor that is being loaded."""
        if message.kind != CALL or message.meta not in _WHILE_LOADING:
            return False
        if message.meta != b"stop_actor":
            return True
        (port, is_drained, grace_s, _), _ = value_of(message)
        if port != loading.message.to_port:
            return False
        if is_drained and not loading.is_overdue:
            # The actor may still load and serve its queued messages within the grace period.
            timer = threading.Timer(grace_s, self._tell_myself, ("overdue", port))
            timer.daemon = True
            timer.start()
            return False
        return True

    def _tell_myself(self, method: str, *args: Any) -> None:
        self._runtime.tell_agent(self._runtime.me, method, *args)

    def _report(self, message: Message, error: Exception) -> None:
        """Report an error in the handling of a message to its sender, or print it to the log."""
        if message.kind == SPAWN:
            self._arrivals.refuse(message, error, "it could not be started")
        elif message.from_port:
            self._engine.reply(message, RAISED, encode_exception(error))
        else:
            traceback.print_exc()

    def refuse_set_up(self, error: BaseException) -> None:
        """Record and report that `bootstrap` failed, which runs before any actor of the process."""
        self.setup_error = error
        table = self._runtime.identity.table
        assert table is not None
        fields = {
            "mesh_name": table.name,
            "rank": self._runtime.identity.rank,
            "reason": "bootstrap raised",
            **self._arrivals.place(),
        }
        owner = table.owner[0]
        failure_id = self._engine.new_port()
        detail = FailureDetail(failure_id, ACTOR_FAILED, fields, encode_exception(error), owner)
        self._setup_failure = detail
        self._runtime.tell_agent(
            owner, "actor_failed", table.uid, self._runtime.identity.rank, detail.encode()
        )

    def _handle(self, message: Message) -> None:
        kind = message.kind
        if kind == CALL:
            self._call(message)
        elif kind == SPAWN:
            self._spawn(message)
        elif kind == CANCEL:
            cell = self._runtime.actors.get(message.to_port)
            if cell is not None:
                cell.cancel(message)
            elif message.to_port == AGENT:
                cancel_reduction(message)
        elif kind == DIED:
            self._died(message)

    def _call(self, message: Message) -> None:
        method = getattr(self, "do_" + message.meta.decode())
        args, _ = value_of(message)
        value = method(message, *args)
        if value is not LATER and message.from_port:
            body, buffers = encode_value(value, 1 << 60)
            self._engine.reply(message, 0, body, buffers)

    def _died(self, message: Message) -> None:
        """Handle the death of a process, which may hold ports or own actors of this process."""
        proc = message.from_proc
        body = message.body
        if proc == self._runtime.me:
            return self._fenced()
        if proc & 0xFFFF_FFFF == 0:
            if message.code == STOPPED:
                why = "its worker reports that the process that served the job exited"
                epoch = message.rank >> EPOCH_SHIFT
                return self._host_left(proc >> 32, None, epoch=epoch, why=why)
            self._host_died(proc >> 32, message.rank >> EPOCH_SHIFT, body)
        self._runtime.ownership.proc_died(proc, body)
        holder_died(proc, body)
        is_held = proc == ROOT and self._runtime.identity.outlives_root
        if is_held:
            self._give_up_calls(proc)
        if self._runtime.host_agent is not None and not self._runtime.is_agent_of(proc):
            threading.Thread(
                target=self._runtime.host_agent.owner_died, args=(proc,), daemon=True
            ).start()
        for cell in list(self._runtime.actors.values()):
            is_kept = is_held and cell.request.owner == (ROOT, 0)
            if cell.request.owner[0] == proc and not is_kept:
                cell.halt()
        return None

    def _give_up_calls(self, caller: int) -> None:
        """Cancel the running calls of a lost process; its queued calls were already removed."""
        for cell in list(self._runtime.actors.values()):
            for message in cell.running_messages():
                if message.from_proc == caller and message.from_port:
                    cell.cancel(message)

    def _fenced(self) -> None:
        """Leave the job, because it declared this host dead while the host was unreachable."""
        if self._has_handed_over:
            print("mesh worker has handed over its host to another machine", file=sys.stderr)
        else:
            print("mesh worker was declared dead by its job, and leaves the job", file=sys.stderr)
        self._runtime.lifecycle.leave(is_at_once=True)

    def _host_died(self, host: int, epoch: int, body: bytes) -> None:
        """Handle a dead host: the root notifies the others; a worker that lost the root leaves."""
        if host == 0:
            self._runtime.lifecycle.root_died()
        elif self._runtime.is_root:
            self._runtime.places.died(host, epoch, body)

    def _spawn(self, message: Message) -> None:
        if self.setup_error is None:
            self._arrivals.take(message)
        else:
            reason = "bootstrap of its process raised"
            self._arrivals.refuse(message, self.setup_error, reason)

    def is_spawning(self, port: int) -> bool:
        """Return whether an actor is still to be spawned at a port; callable on any thread."""
        return self._arrivals.is_coming(port)

    def cell_ended(self, cell: ActorCell) -> None:
        """Handle the termination of an actor; spawn its replacement if a request is waiting."""
        if self._arrivals.replaces(cell):
            self._tell_myself("spawn_again", cell.port)

    def _drain(self, cell: ActorCell, grace_s: float) -> None:
        """Queue a stop message behind the pending messages, and monitor that it is reached."""
        target = Targets([(self._engine.me, 0)])
        self._engine.send(CALL, target, cell.port, _STOP, b"", [], 1 << 31, 0, None)
        threading.Thread(
            target=cell.ending.drain, args=(grace_s,), name=f"mesh-stop-{cell.name}", daemon=True
        ).start()

    # The methods below are called by name in messages from other processes.

    def do_ready(self, message: Message) -> Any:
        """Reply once the setup of the process has ended."""
        if self._setup_failure is None:
            return None
        self._engine.reply(message, ACTOR_FAILED, self._setup_failure.encode())
        return LATER

    def do_wake(self, _message: Message) -> None:
        """Wake the thread of the agent, so that it checks its timers."""

    def do_set_up_ended(self, _message: Message) -> None:
        """Make `run` return because `bootstrap` has ended; `run` is then called again."""
        self._has_set_up_ended = True

    def do_loaded(self, _message: Message) -> None:
        """Start the actor that has been loaded, then serve the deferred messages."""
        self._arrivals.begin()
        self._take_held()

    def do_overdue(self, _message: Message, port: int) -> None:
        """Handle an actor whose grace period for stopping expired while it is loading."""
        loading = self._arrivals.loading
        if loading is not None and loading.message.to_port == port:
            loading.is_overdue = True
            self._take_held()

    def do_spawn_again(self, _message: Message, port: int) -> None:
        """Spawn the replacement of an actor that has terminated."""
        if not self._is_ending:
            self._arrivals.take_again(port)

    def do_pid(self, _message: Message) -> int:
        """Return the process id."""
        return os.getpid()

    def do_stop_actor(
        self, message: Message, port: int, is_drained: bool, grace_s: float, reason: str | None
    ) -> Any:
        """Stop an actor; reply when it has terminated, with its failure if it has failed."""
        self._arrivals.drop(port)
        cell = self._runtime.actors.get(port)
        refused = self._arrivals.refusal(port)
        if cell is None or refused is not None:
            self._arrivals.stopped(port)
            self._engine.close_mailbox(port, STOPPED, b"")
            return (refused, None)
        if message.from_port:
            cell.ending.answer_when_over(message)
        if cell.is_ended:
            return LATER
        cell.stop_reason = cell.stop_reason or reason
        if is_drained:
            self._drain(cell, grace_s)
        else:
            cell.ending.grace_s = grace_s
            cell.halt()
        return LATER

    def do_root_back(self, _message: Message) -> list[tuple[int, int, bytes]]:
        """Watch the new process of the program; return the failures of its meshes here."""
        self._engine.watch(ROOT)
        failed = []
        table = self._runtime.identity.table
        if self._setup_failure is not None and table is not None and table.owner == (ROOT, 0):
            rank = self._runtime.identity.rank
            failed.append((table.uid, rank, self._setup_failure.encode()))
        for cell in list(self._runtime.actors.values()):
            report = cell.ending.failure()
            if report is not None and cell.request.owner == (ROOT, 0):
                failed.append((cell.port, cell.rank, report))
        return failed

    def do_expect_spawns(self, _message: Message, up_to: int, coming: list[int]) -> None:
        """Limit expected spawns: of all ports up to a number, only these are still to come."""
        self._engine.expect_spawns(up_to, coming)

    def do_actor_failed(self, _message: Message, uid: int, rank: int, body: bytes) -> None:
        """Handle the failure of a rank of a mesh that this process owns."""
        self._runtime.ownership.actor_failed(uid, rank, body)

    def do_actor_left(self, _message: Message, uid: int, rank: int, body: bytes) -> None:
        """Handle a rank of a mesh that this process owns and whose actor stopped itself."""
        self._runtime.ownership.actor_left(uid, rank, body)

    def do_observed(self, _message: Message, failure_id: int) -> None:
        """Record that a caller elsewhere received a failure of a mesh that is owned here."""
        self._runtime.ownership.observed(failure_id)

    def do_ports_sent(self, _message: Message, labels: list[Label], procs: list[int]) -> None:
        """Record that ports of this process are in transit from one process to others."""
        ports_sent(labels, procs)

    def do_ports_recalled(self, _message: Message, labels: list[Label], procs: list[int]) -> None:
        """Record that these ports were not sent."""
        ports_recalled(labels, procs)

    def do_ports_dropped(self, _message: Message, labels: list[Label], procs: list[int]) -> None:
        """Record that the message with these ports was dropped."""
        ports_dropped(labels, procs)

    def do_port_held(self, message: Message, port: int, serial: int) -> None:
        """Record that another process has received a port of a channel of this process."""
        port_held(message.from_proc, port, serial)

    def do_port_released(self, message: Message, port: int) -> None:
        """Record that another process has released a port of a channel of this process."""
        port_released(message.from_proc, port)

    def do_answer_port_held(self, message: Message, address: tuple[int, ...], serial: int) -> None:
        """Record that another process received the response port of an actor of this process."""
        answer_port_held(message.from_proc, address, serial)

    def do_answer_port_released(self, message: Message, address: tuple[int, ...]) -> None:
        """Record that another process has replied on such a response port."""
        answer_port_released(message.from_proc, address)

    def do_log_level(self, _message: Message, level: int) -> None:
        """Set the level of Python's logging."""
        set_level(level)

    def do_controller(
        self, message: Message, name: str, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Reply with the controller of this name."""
        answer_controller(message, name, cls, args, kwargs)
        return LATER

    def do_waiting_on(self, _message: Message, port: int, call_proc: int, call_port: int) -> Any:
        """Return the calls that must complete before an actor here can reply to a call."""
        return waiting_on(self._runtime, port, (call_proc, call_port))

    def do_end(self, _message: Message, grace_s: float, is_drained: bool = True) -> None:
        """Stop every actor and then the process; reply immediately to confirm that it is alive."""
        if not self._is_ending:
            self._is_ending = True
            threading.Thread(target=self._end, args=(grace_s, is_drained), daemon=True).start()

    def _end(self, grace_s: float, is_drained: bool) -> None:
        alive = [cell for cell in list(self._runtime.actors.values()) if not cell.is_ended]
        for cell in reversed(alive):
            if is_drained:
                self._drain(cell, grace_s)
            else:
                cell.ending.grace_s = grace_s
                cell.halt()
        for cell in alive:
            cell.ending.is_over.wait()
        self._runtime.lifecycle.leave(0)

    def do_patch(self, message: Message, patches: dict[str, bytes]) -> Any:
        """Replace actor classes in later spawns; a host agent passes this on to its processes."""
        if not self._runtime.is_root:
            inherit_patches(patches)
        if self._runtime.host_agent is None:
            return None
        patch_host(self._runtime, patches, message)
        return LATER
