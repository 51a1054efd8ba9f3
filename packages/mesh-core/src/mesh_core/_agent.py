"""The agent of a process: spawns and stops its actors, and hears what the core has to say to it.

One thread, one mailbox. Nothing here waits for anything but the next message: what may take long is
handed to a thread of its own.
"""

from __future__ import annotations

import os
import threading
import traceback

from mesh_core._actor import is_loop_driven
from mesh_core._channel import holder_died, port_held, port_released
from mesh_core._core import PortClosed, Targets
from mesh_core._failure import FailureDetail
from mesh_core._pickle import encode_value
from mesh_core._remote_error import encode_exception
from mesh_core._wire import AGENT, CALL, CANCEL, DIED, INTERNAL, RAISED, SPAWN, STOP, STOPPED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._actor_cell import ActorCell
    from mesh_core._core import Message
    from mesh_core._runtime import Runtime

__all__ = ["LATER", "Agent"]

_BATCH_MAX = 64
_STOP = bytes([INTERNAL]) + STOP.encode() + b"\0"
LATER = object()


class Agent:
    """What other processes may ask of this one."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._engine = runtime.engine
        self._is_ending = False
        self._respawns: dict[int, Message] = {}
        self._orders: dict[int, tuple[int, Any]] = {}
        # Why the set-up that the user asked for has failed, if it has.
        self.setup_error: BaseException | None = None

    def run(self) -> None:
        """Serves until the process ends."""
        ownership = self._runtime.ownership
        while True:
            try:
                messages = self._engine.receive(AGENT, _BATCH_MAX, ownership.due_in_s())
            except PortClosed:
                return
            if not messages:
                ownership.tick()
            for message in messages:
                try:
                    self._handle(message)
                except Exception as error:
                    self._report(message, error)

    def _report(self, message: Message, error: Exception) -> None:
        """Says what went wrong with a message to who sent it, or to the log."""
        if message.kind == SPAWN:
            self._refuse_spawn(message, error, "it could not be started")
        elif message.from_port:
            self._engine.answer(message, RAISED, encode_exception(error))
        else:
            traceback.print_exc()

    def _refuse_spawn(self, message: Message, error: BaseException, reason: str) -> None:
        """Answers a spawn, and all calls of what was to be spawned, with an error."""
        cause = encode_exception(error)
        self._engine.answer(message, RAISED, cause)
        detail = FailureDetail(0, STOPPED, {"reason": reason}, cause)
        self._engine.close_mailbox(message.to_port, STOPPED, detail.encode())

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
        from mesh_core._runtime import value_of

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
        self._runtime.ownership.proc_died(proc, body)
        for cell in list(self._runtime.actors.values()):
            if cell.order.owner[0] == proc:
                self._stop_actor(cell.port)
        holder_died(proc, body)
        if self._runtime.host_agent is not None:
            self._runtime.host_agent.owner_died(proc)

    def _spawn(self, message: Message) -> None:
        port = message.to_port
        if self.setup_error is not None:
            return self._refuse_spawn(message, self.setup_error, "the set-up of its process failed")
        from mesh_core._runtime import value_of

        try:
            order = value_of(message)
        except BaseException as error:
            # Its module is not there, or does not import here.
            reason = "its class could not be loaded in its process"
            return self._refuse_spawn(message, error, reason)
        owner_proc = order.owner[0]
        if owner_proc != self._runtime.me:
            self._engine.watch(owner_proc)
        self._orders[port] = (message.rank, order)
        self._start(port, message)

    def _start(self, port: int, message: Message) -> None:
        rank, order = self._orders[port]
        if is_loop_driven(order.cls):
            from mesh_core._serve_loop import LoopCell as Cell
        else:
            from mesh_core._serve_thread import ThreadCell as Cell
        cell = self._runtime.actors[port] = Cell(self._runtime, port, rank, order)
        cell.start(message)

    def cell_ended(self, cell: ActorCell) -> None:
        """An actor is gone; starts it again if that was asked for meanwhile."""
        again = self._respawns.pop(cell.port, None)
        if again is not None and not self._is_ending:
            self._revive(again, cell.port)

    def _revive(self, message: Message, port: int) -> None:
        self._engine.open_mailbox(port, self._orders[port][1].window)
        self._start(port, message)

    def _stop_actor(self, port: int, timeout: float | None = None) -> int:
        """Puts a stop behind what is queued; gives the port of the answer."""
        return self._engine.call(
            CALL, Targets([(self._engine.me, 0)]), port, _STOP, b"", [], 1 << 31, timeout, True
        )

    # What others ask for, by name.

    def do_ready(self, _message: Message) -> None:
        """Answers once the set-up of the process is over."""
        if self.setup_error is not None:
            raise self.setup_error

    def do_pid(self, _message: Message) -> int:
        """Gives the process id."""
        return os.getpid()

    def do_revive(self, message: Message, port: int) -> Any:
        """Starts an actor again that has failed, with its first arguments."""
        cell = self._runtime.actors.get(port)
        if cell is None:
            raise RuntimeError("the actor was never spawned here")
        if cell.is_ended:
            self._revive(message, port)
        else:
            self._respawns[port] = message
            if not cell.is_ending:
                self._stop_actor(port)
        return LATER

    def do_actor_failed(
        self, _message: Message, _owner: int, uid: int, rank: int, body: bytes
    ) -> None:
        """A rank of a mesh that is owned here has failed."""
        self._runtime.ownership.actor_failed(uid, rank, body)

    def do_observed(self, _message: Message, failure_id: int) -> None:
        """A caller elsewhere has been given a failure of something that is owned here."""
        self._runtime.ownership.observed(failure_id)

    def do_port_held(self, message: Message, port: int) -> None:
        """A port of a channel of this process has arrived somewhere."""
        port_held(message.from_proc, port)

    def do_port_released(self, message: Message, port: int) -> None:
        """A port of a channel of this process was let go."""
        port_released(message.from_proc, port)

    def do_log_level(self, _message: Message, level: int) -> None:
        """Sets the level of Python's logging."""
        import logging

        logging.getLogger().setLevel(level)

    def do_waiting_on(self, _message: Message, port: int) -> Any:
        """Says what an actor of this process waits for."""
        from mesh_core._deadlock import waiting_on

        return waiting_on(port)

    def do_end(self, message: Message, grace_s: float) -> Any:
        """Stops every actor and then the process."""
        if not self._is_ending:
            self._is_ending = True
            threading.Thread(target=self._end, args=(grace_s,), daemon=True).start()
        return None

    def _end(self, grace_s: float) -> None:
        alive = [cell for cell in self._runtime.actors.values() if not cell.is_ended]
        replies = [self._stop_actor(cell.port, grace_s) for cell in reversed(alive)]
        for reply in replies:
            self._engine.wait(reply, None)
        from mesh_core._launch import leave

        leave(0)

    # What only the agent of a host can do.

    def do_reserve(self, _message: Message, count: int) -> tuple[int, str]:
        """Sets slots aside; gives the first of them and the host's name."""
        assert self._runtime.host_agent is not None
        return self._runtime.host_agent.reserve(count), self._runtime.identity.host_name

    def do_start(self, _message: Message, order: Any) -> None:
        """Starts processes."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.start(order)

    def do_stop(self, message: Message, slots: list[int], grace_s: float) -> Any:
        """Stops processes; answers when they are gone."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.stop(message, slots, grace_s)
        return LATER

    def do_replace(self, message: Message, slot: int) -> Any:
        """Starts a new process in a slot whose process has died."""
        assert self._runtime.host_agent is not None
        self._runtime.host_agent.replace(slot)
        return None
