"""The agent of a process: spawns and stops its actors, and hears what the core has to say to it.

One thread, one mailbox. Nothing here waits for anything but the next message: what may take long is
handed to a thread of its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback

from mesh_core._actors.arrivals import Arrivals
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
from mesh_core._core import PortClosed, Targets
from mesh_core._hosts.epoch import EPOCH_SHIFT
from mesh_core._serialization.pickler import encode_value
from mesh_core._serialization.remote_error import encode_exception
from mesh_core._serialization.wire import (
    ACTOR_FAILED,
    AGENT,
    ANSWER,
    CALL,
    CANCEL,
    DIED,
    INTERNAL,
    POST,
    RAISED,
    SPAWN,
    STOP,
    STOPPED,
    proc_id,
)
from mesh_core._supervision.failure import FailureDetail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._actors.cell import ActorCell
    from mesh_core._actors.loading import Loading
    from mesh_core._calls.port_transit import Label
    from mesh_core._core import Message
    from mesh_core._hosts.agent import StartOrder
    from mesh_core._logging.line import LogLine
    from mesh_core._program.runtime import Runtime

__all__ = ["LATER", "Agent"]

_BATCH_MAX = 64
# How long an answer to a host may take to be written before that host is taken for lost.
_ANSWER_LIMIT_S = 0.1
# Messages that may carry ports; the core hands those that it drops to the agent.
_DROPPED = frozenset({ANSWER, CALL, POST})
_STOP = bytes([INTERNAL]) + STOP.encode() + b"\0"
LATER = object()
# What is answered while an actor is being loaded, before what has come in behind that.
_WHILE_LOADING = frozenset({b"wake", b"loaded", b"overdue", b"stop_actor"})
# What other processes are answered while the `bootstrap` of this one runs.
_WHILE_SETTING_UP = frozenset(
    {b"wake", b"waiting_on", b"patch", b"port_held", b"port_released"}
    | {b"answer_port_held", b"answer_port_released"}
)
# The process of the program, and the port under which the program owns what it owns.
ROOT = 0


class Agent:
    """What other processes may ask of this one."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._engine = runtime.engine
        self._is_ending = False
        self._arrivals = Arrivals(runtime)
        # What has come in behind the actor that is being loaded, or while `bootstrap` runs.
        self._held: list[Message] = []
        self._is_setting_up = False
        self._has_set_up_ended = False
        # Why the set-up that the user asked for has failed, if it has.
        self.setup_error: BaseException | None = None
        self._setup_failure: FailureDetail | None = None

    def run(self) -> None:
        """Serves until the process ends, or until `bootstrap` has ended where one runs."""
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
        """Holds back what other processes send, before `run` is called for the first time."""
        self._is_setting_up = True

    def end_set_up(self, thread: threading.Thread) -> None:
        """Ends `run` in the thread that has served during `bootstrap`; waits for it."""
        self._tell_myself("set_up_ended")
        thread.join()
        self._is_setting_up = False

    def _take(self, message: Message) -> None:
        if message.kind in _DROPPED and message.to_port != AGENT:
            # The core has dropped it, and names it because it carries ports.
            return drop_ports(message)
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
        """Says whether a message is served only after `bootstrap`, which itself may spawn here."""
        if message.from_proc == self._runtime.me:
            return False
        if message.kind == DIED:
            # A channel of `bootstrap` must not wait for a process that has died.
            holder_died(message.from_proc, message.body)
            return True
        return message.kind != CALL or message.meta not in _WHILE_SETTING_UP

    def _cannot_wait(self, message: Message, loading: Loading) -> bool:
        """Says whether a message is served before the actor that is being loaded."""
        if message.kind != CALL or message.meta not in _WHILE_LOADING:
            return False
        if message.meta != b"stop_actor":
            return True
        from mesh_core._program.runtime import value_of

        (port, is_drained, grace_s, _), _ = value_of(message)
        if port != loading.message.to_port:
            return False
        if is_drained and not loading.is_overdue:
            # It may still serve what is queued.
            timer = threading.Timer(grace_s, self._tell_myself, ("overdue", port))
            timer.daemon = True
            timer.start()
            return False
        return True

    def _tell_myself(self, method: str, *args: Any) -> None:
        self._runtime.tell_agent(self._runtime.me, method, *args)

    def _report(self, message: Message, error: Exception) -> None:
        """Says what went wrong with a message to who sent it, or to the log."""
        if message.kind == SPAWN:
            self._arrivals.refuse(message, error, "it could not be started")
        elif message.from_port:
            self._engine.answer(message, RAISED, encode_exception(error))
        else:
            traceback.print_exc()

    def refuse_set_up(self, error: BaseException) -> None:
        """Says that what the user wants run in the process before any actor has failed."""
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
        elif kind == DIED:
            self._died(message)

    def _call(self, message: Message) -> None:
        from mesh_core._program.runtime import value_of

        method = getattr(self, "do_" + message.meta.decode())
        args, _ = value_of(message)
        value = method(message, *args)
        if value is not LATER and message.from_port:
            body, buffers = encode_value(value, 1 << 60)
            self._engine.answer(message, 0, body, buffers)

    def _died(self, message: Message) -> None:
        """A process has died: it may have held what we own, or owned what we hold."""
        proc = message.from_proc
        body = message.body
        if proc == self._runtime.me:
            return self._fenced()
        if proc & 0xFFFF_FFFF == 0:
            if message.code == STOPPED:
                why = "what served the job there has ended, says its worker"
                return self._host_left(proc >> 32, None, why, message.rank >> EPOCH_SHIFT)
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
            is_kept = is_held and cell.order.owner == (ROOT, 0)
            if cell.order.owner[0] == proc and not is_kept:
                cell.halt()
        return None

    def _give_up_calls(self, caller: int) -> None:
        """Cancels the calls of a process that is lost; those that wait were taken back already."""
        for cell in list(self._runtime.actors.values()):
            for message in cell.running_messages():
                if message.from_proc == caller and message.from_port:
                    cell.cancel(message)

    def _fenced(self) -> None:
        """This host was taken for dead while it was not heard of: the job goes on without it."""
        from mesh_core._workers.session import leave

        print("mesh worker was taken for dead by its job, and leaves it", file=sys.stderr)
        leave(is_at_once=True)

    def _host_died(self, host: int, epoch: int, body: bytes) -> None:
        """A host is dead: the others hear it from the root, a worker without one leaves."""
        if host == 0:
            from mesh_core._workers.session import root_died

            root_died()
        elif self._runtime.is_root:
            self._runtime.places.died(host, epoch, body)

    def _spawn(self, message: Message) -> None:
        if self.setup_error is None:
            self._arrivals.take(message)
        else:
            reason = "bootstrap of its process raised"
            self._arrivals.refuse(message, self.setup_error, reason)

    def is_spawning(self, port: int) -> bool:
        """Returns whether an actor is still to be spawned at a port; called on any thread."""
        return self._arrivals.is_coming(port)

    def cell_ended(self, cell: ActorCell) -> None:
        """An actor is gone; starts it again if that was asked for meanwhile."""
        if self._arrivals.replaces(cell):
            self._tell_myself("spawn_again", cell.port)

    def _drain(self, cell: ActorCell, grace_s: float) -> None:
        """Puts a stop behind what is queued, and sees that it comes to its turn."""
        target = Targets([(self._engine.me, 0)])
        self._engine.send(CALL, target, cell.port, _STOP, b"", [], 1 << 31, 0, True)
        threading.Thread(
            target=cell.ending.drain, args=(grace_s,), name=f"mesh-stop-{cell.name}", daemon=True
        ).start()

    # What others ask for, by name.

    def do_ready(self, message: Message) -> Any:
        """Answers once the set-up of the process is over."""
        if self._setup_failure is None:
            return None
        self._engine.answer(message, ACTOR_FAILED, self._setup_failure.encode())
        return LATER

    def do_wake(self, _message: Message) -> None:
        """Makes this thread look at what is due."""

    def do_set_up_ended(self, _message: Message) -> None:
        """The `bootstrap` of the process has ended: `run` returns, and is called again."""
        self._has_set_up_ended = True

    def do_loaded(self, _message: Message) -> None:
        """It is known what an actor is to be: starts it, and serves what has come in behind it."""
        self._arrivals.begin()
        self._take_held()

    def do_overdue(self, _message: Message, port: int) -> None:
        """An actor was told to stop, and its time is over while it is being loaded."""
        loading = self._arrivals.loading
        if loading is not None and loading.message.to_port == port:
            loading.is_overdue = True
            self._take_held()

    def do_spawn_again(self, _message: Message, port: int) -> None:
        """Nothing is left of an actor that is to be replaced."""
        if not self._is_ending:
            self._arrivals.take_again(port)

    def do_pid(self, _message: Message) -> int:
        """Gives the process id."""
        return os.getpid()

    def do_stop_actor(
        self, message: Message, port: int, is_drained: bool, grace_s: float, reason: str | None
    ) -> Any:
        """Stops an actor; answers when nothing of it is left, with how it failed, if it has."""
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
        """Another program runs the job; says what it owns here that has failed."""
        self._engine.watch(ROOT)
        failed = []
        table = self._runtime.identity.table
        if self._setup_failure is not None and table is not None and table.owner == (ROOT, 0):
            rank = self._runtime.identity.rank
            failed.append((table.uid, rank, self._setup_failure.encode()))
        for cell in list(self._runtime.actors.values()):
            report = cell.ending.failure()
            if report is not None and cell.order.owner == (ROOT, 0):
                failed.append((cell.port, cell.rank, report))
        return failed

    def do_expect_only(self, _message: Message, up_to: int, coming: list[int]) -> None:
        """Of what the sender has made up to a number, only these are still to be spawned here."""
        self._engine.expect_only(up_to, coming)

    def do_actor_failed(self, _message: Message, uid: int, rank: int, body: bytes) -> None:
        """A rank of a mesh that is owned here has failed."""
        self._runtime.ownership.actor_failed(uid, rank, body)

    def do_actor_left(self, _message: Message, uid: int, rank: int, body: bytes) -> None:
        """A rank of a mesh that is owned here has stopped because it wanted to."""
        self._runtime.ownership.actor_left(uid, rank, body)

    def do_observed(self, _message: Message, failure_id: int) -> None:
        """A caller elsewhere has been given a failure of something that is owned here."""
        self._runtime.ownership.observed(failure_id)

    def do_ports_sent(self, _message: Message, labels: list[Label], procs: list[int]) -> None:
        """Ports that this process waits for are on their way from one process to others."""
        ports_sent(labels, procs)

    def do_ports_recalled(self, _message: Message, labels: list[Label], procs: list[int]) -> None:
        """They were not sent."""
        ports_recalled(labels, procs)

    def do_ports_dropped(self, _message: Message, labels: list[Label], procs: list[int]) -> None:
        """The message that had them was dropped."""
        ports_dropped(labels, procs)

    def do_port_held(self, message: Message, port: int, serial: int) -> None:
        """A port of a channel of this process has arrived somewhere."""
        port_held(message.from_proc, port, serial)

    def do_port_released(self, message: Message, port: int) -> None:
        """A port of a channel of this process was let go."""
        port_released(message.from_proc, port)

    def do_answer_port_held(self, message: Message, address: tuple[int, ...], serial: int) -> None:
        """A port that an actor of this process was to answer on has arrived somewhere."""
        answer_port_held(message.from_proc, address, serial)

    def do_answer_port_released(self, message: Message, address: tuple[int, ...]) -> None:
        """It was answered on there."""
        answer_port_released(message.from_proc, address)

    def do_log_level(self, _message: Message, level: int) -> None:
        """Sets the level of Python's logging."""
        import logging

        logging.getLogger().setLevel(level)
        if logging.lastResort is not None:
            # The loggers of actors have levels of their own.
            logging.lastResort.setLevel(level)

    def do_controller(
        self, message: Message, name: str, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answers with the only actor of this name in the job."""
        from mesh_core._actors.controller import answer_controller

        answer_controller(message, name, cls, args, kwargs)
        return LATER

    def do_waiting_on(self, _message: Message, port: int, call_proc: int, call_port: int) -> Any:
        """Says what must end before an actor of this process can answer a call."""
        from mesh_core._calls.deadlock import waiting_on

        return waiting_on(self._runtime, port, (call_proc, call_port))

    def do_end(self, _message: Message, grace_s: float, is_drained: bool = True) -> None:
        """Stops every actor and then the process; answers at once, as a sign of life."""
        if not self._is_ending:
            self._is_ending = True
            threading.Thread(target=self._end, args=(grace_s, is_drained), daemon=True).start()

    def _end(self, grace_s: float, is_drained: bool) -> None:
        alive = [cell for cell in self._runtime.actors.values() if not cell.is_ended]
        for cell in reversed(alive):
            if is_drained:
                self._drain(cell, grace_s)
            else:
                cell.ending.grace_s = grace_s
                cell.halt()
        for cell in alive:
            cell.ending.is_over.wait()
        from mesh_core._processes.launch import leave

        leave(0)

    def do_patch(self, message: Message, patches: dict[str, bytes]) -> Any:
        """Spawns other classes in place of some; a host agent passes it on to its processes."""
        from mesh_core._testing.mock import inherit_patches, patch_host

        if not self._runtime.is_root:
            inherit_patches(patches)
        if self._runtime.host_agent is None:
            return None
        patch_host(self._runtime, patches, message)
        return LATER

    # What only the agent of a host can do.

    def do_routes(
        self, _message: Message, ways: dict[int, tuple[list[str], list[str], bool]]
    ) -> None:
        """Learns where other hosts listen, and calls those that cannot call us."""
        for host, (addresses, gateway, is_only_way) in ways.items():
            self._engine.set_route(host, addresses, gateway)
            if is_only_way:
                self._engine.dial(proc_id(host, 0))

    def do_host_gone(self, _message: Message, host: int, obituary: bytes) -> None:
        """Another host is dead."""
        self._engine.host_gone(host, obituary)

    def do_host_leaving(self, message: Message, grace_s: float) -> None:
        """Notes that a worker was told to end, and stops what is left on its host by then."""
        self._runtime.leaving_hosts[message.from_proc >> 32] = time.monotonic() + grace_s

    def do_host_left(self, message: Message, host_name: str, why: str) -> Any:
        """A worker leaves the job although nobody here wanted that: its host is lost at once."""
        host = message.from_proc >> 32

        def lose() -> None:
            # The worker waits for the answer, which does not reach it once it is taken for lost.
            self._engine.answer(message, 0, *encode_value(None, 1 << 60))
            self._engine.drain(_ANSWER_LIMIT_S)
            self._host_left(host, host_name, why)

        threading.Thread(target=lose, name=f"mesh-lost-{host}", daemon=True).start()
        return LATER

    def _host_left(
        self, host: int, host_name: str | None, why: str, epoch: int | None = None
    ) -> None:
        from mesh_core._hosts.attach import obituary

        self._runtime.leaving_hosts.pop(host, None)
        place = self._runtime.places.withdrew(host, epoch)
        if place is not None:
            name = host_name or place.host_name
            self._engine.host_gone(host, obituary(self._runtime, name, why))

    def do_journal(self, _message: Message, changes: dict[int, bytes | None]) -> None:
        """Notes what the program owns, or owns no more."""
        kept = self._runtime.kept
        for number, entry in changes.items():
            if entry is None:
                kept.pop(number, None)
            else:
                kept[number] = entry

    def do_read_journal(self, _message: Message) -> dict[int, bytes]:
        """Gives all that was noted."""
        return self._runtime.kept

    def do_host_back(self, _message: Message | None, host: int, epoch: int) -> None:
        """Another machine is in the place of a host; the processes here hear it too."""
        # First, for those that start at this moment.
        self._runtime.host_epochs[host] = epoch
        self._engine.host_back(host, epoch)
        if self._runtime.host_agent is not None:
            for slot in self._runtime.host_agent.living():
                proc = proc_id(self._runtime.identity.host, slot)
                self._runtime.tell_agent(proc, "host_back", host, epoch)

    def do_replace_host(
        self, message: Message, host: int, worker: str | None, may_return: bool, is_urgent: bool
    ) -> Any:
        """Puts another machine into the place of a dead host; answers when it has joined."""
        self._runtime.leaving_hosts.pop(host, None)

        def replace() -> None:
            try:
                self._runtime.places.replace(
                    host, worker, may_return=may_return, is_urgent=is_urgent
                )
            except Exception as error:
                self._engine.answer(message, RAISED, encode_exception(error))
            else:
                self._engine.answer(message, 0, *encode_value(None, 1 << 60))

        threading.Thread(target=replace, name=f"mesh-replace-{host}", daemon=True).start()
        return LATER

    def do_log_lines(self, _message: Message, lines: list[LogLine]) -> None:
        """Shows what processes of another host have printed."""
        assert self._runtime.host_agent is not None
        for line in lines:
            self._runtime.host_agent.show(line)

    def do_leave(self, _message: Message, is_shutdown: bool) -> None:
        """Has this host leave the job; answers at once, as a sign that it will."""
        from mesh_core._workers.session import leave
        from mesh_core._workers.worker import ENDED_BY_OWNER

        leave(ENDED_BY_OWNER if is_shutdown else 0)

    def do_reserve(self, _message: Message, count: int) -> tuple[int, str]:
        """Sets slots aside; gives the first of them and the host's name."""
        assert self._runtime.host_agent is not None
        return self._runtime.host_agent.reserve(count), self._runtime.identity.host_name

    def do_start(self, _message: Message, order: Any) -> None:
        """Starts processes."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.start(order)

    def do_stop(self, message: Message, slots: list[int], grace_s: float, is_drained: bool) -> Any:
        """Stops processes; answers when they are gone."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.stop(message, slots, grace_s, is_drained)
        return LATER

    def do_end_silent(self, _message: Message, slot: int, why: str) -> None:
        """Ends a process that was up and does not answer any more."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.end_silent(slot, why)

    def do_conditions(self, _message: Message, slots: list[int]) -> list[tuple[str, str]]:
        """Returns what is known of processes of this host that have not answered."""
        assert self._runtime.host_agent is not None
        return [self._runtime.host_agent.condition(slot) for slot in slots]

    def do_signal(self, _message: Message | None, slot: int, number: int) -> None:
        """Sends a signal to a process."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.signal(slot, number)

    def do_replace(self, _message: Message, slot: int, order: StartOrder | None) -> int | None:
        """Starts a new process in a slot whose process has died; None when it lives."""
        assert self._runtime.host_agent is not None
        return self._runtime.host_agent.replace(slot, order)
