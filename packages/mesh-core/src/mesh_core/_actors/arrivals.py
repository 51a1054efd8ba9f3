"""Spawn requests that reach this process: actors are loaded, started, restarted or refused."""

from __future__ import annotations

import os

from mesh_core._actors.loading import Loading
from mesh_core._actors.thread_server import ThreadCell
from mesh_core._calls.actor import is_loop_driven
from mesh_core._serialization.remote_error import encode_exception
from mesh_core._serialization.wire import ACTOR_FAILED, RAISED, STOPPED, proc_name
from mesh_core._supervision.failure import FailureDetail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._actors.cell import ActorCell
    from mesh_core._core import Message
    from mesh_core._runtime.runtime import Runtime

__all__ = ["Arrivals"]


class Arrivals:
    """Handler of all spawn requests of this process; called on the thread of the agent.

    Attributes:
        loading: The actor that is being loaded, at most one at a time.
        moved_parts: The large parts of actors that continue here after a move, by port, until their
            spawn requests arrive.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._engine = runtime.engine
        self.loading: Loading | None = None
        self.moved_parts: dict[int, list[memoryview]] = {}
        # Spawn requests that wait for the termination of the actor that they replace, by port.
        self._respawns: dict[int, Message] = {}
        # Ports for which a spawn request has arrived.
        self._spawned: set[int] = set()
        # The encoded failure of the last spawn, for ports at which it was refused.
        self._refused: dict[int, bytes] = {}
        # Ports that were stopped before anything was spawned at them.
        self._stopped: set[int] = set()

    def take(self, message: Message) -> None:
        """Start to load an actor once the actor that it replaces has terminated."""
        port = message.to_port
        old = self._runtime.actors.get(port)
        if old is not None and not old.is_ended:
            # The actor is to be restarted: the previous instance must terminate first.
            self.drop(port)
            self._respawns[port] = message
            old.halt()
            if not old.is_ended:
                return
            self._respawns.pop(port, None)
        parts = self.moved_parts.pop(port, None)
        self.loading = Loading(message, self._runtime.recording, parts)
        self.loading.start(lambda: self._runtime.tell_agent(self._runtime.me, "loaded"))

    def is_coming(self, port: int) -> bool:
        """Return whether an actor is still to be spawned at a port; callable on any thread."""
        loading = self.loading
        if loading is not None and loading.message.to_port == port:
            return not loading.is_given_up
        if port in self._respawns:
            return True
        return port not in self._spawned and port not in self._stopped

    def stopped(self, port: int) -> None:
        """Record that no actor will be spawned at a port, because its mesh was stopped."""
        self._stopped.add(port)

    def replaces(self, cell: ActorCell) -> bool:
        """Return whether a spawn request waits for the termination of an actor."""
        return cell.port in self._respawns

    def take_again(self, port: int) -> None:
        """Resume a spawn request that waited for its predecessor, unless it was dropped."""
        message = self._respawns.get(port)
        if message is not None:
            self.take(message)
            # Remove it last, because `is_coming` is called on other threads.
            self._respawns.pop(port, None)

    def begin(self) -> None:
        """Start the actor that was loaded, unless it was stopped while it was loading."""
        loading = self.loading
        assert loading is not None
        try:
            self._begin(loading)
        finally:
            # Reset it last, because `is_coming` is called on other threads.
            self.loading = None

    def _begin(self, loading: Loading) -> None:
        if loading.is_given_up:
            return
        if loading.error is not None:
            reason = "could not be loaded in its process"
            self.refuse(loading.message, loading.error, reason)
            return
        try:
            self._start(loading)
        except Exception as error:
            self.refuse(loading.message, error, "it could not be started")

    def _start(self, loading: Loading) -> None:
        message, request = loading.message, loading.request
        assert request is not None
        port, owner_proc = message.to_port, request.owner[0]
        if owner_proc != self._runtime.me:
            self._engine.watch(owner_proc)
        if port in self._spawned:
            # The core opens the mailbox only for the first spawn frame. Messages sent after a later
            # one wait until the mailbox is opened here.
            self._engine.open_mailbox(port, request.window)
        self._spawned.add(port)
        self._refused.pop(port, None)
        cell = _driver_of(request.cls)(self._runtime, port, message.rank, request)
        self._runtime.actors[port] = cell
        if self._runtime.recording is not None:
            cell.reader = cell.recording = self._runtime.recording.begin(
                loading.opened, request.name, request.cls, dict(cell.point.extent)
            )
        cell.start(message)

    def refuse(self, message: Message, error: BaseException, reason: str) -> None:
        """Reply to a spawn request, and to all calls of that actor, with an error."""
        cause = encode_exception(error)
        self._engine.reply(message, RAISED, cause)
        failure_id = self._engine.new_port()
        fields = {"reason": reason, **self.place()}
        detail = FailureDetail(failure_id, ACTOR_FAILED, fields, cause, message.from_proc)
        body = self._refused[message.to_port] = detail.encode()
        self._close(message.to_port, ACTOR_FAILED, body)
        # The process that spawns an actor owns it.
        self._runtime.tell_agent(
            message.from_proc, "actor_failed", message.to_port, message.rank, body
        )

    def place(self) -> dict[str, Any]:
        """Return the location fields of failures in this process."""
        return {
            "host": self._runtime.identity.host_name,
            "proc": proc_name(self._runtime.me),
            "pid": os.getpid(),
        }

    def refusal(self, port: int) -> bytes | None:
        """Return the encoded failure of the last spawn at a port, if it was refused."""
        return self._refused.get(port)

    def drop(self, port: int) -> None:
        """Abandon an actor that is waiting or loading at a port, because it was stopped."""
        message = self._respawns.pop(port, None)
        if self.loading is not None and self.loading.message.to_port == port:
            self.loading.is_given_up = True
            message = self.loading.message
        if message is not None:
            self._engine.reply(message, STOPPED, b"")
            self._close(port, STOPPED, b"")

    def _close(self, port: int, code: int, body: bytes) -> None:
        """Close the mailbox of an actor that will not start, which replies to all its calls."""
        if port in self._spawned:
            # Open the mailbox first to receive the messages that were sent after the spawn request.
            self._engine.open_mailbox(port, 1)
        self._spawned.add(port)
        self._engine.close_mailbox(port, code, body)


def _driver_of(cls: type) -> type[ActorCell]:
    """Return the cell class that runs the actors of a class."""
    if is_loop_driven(cls):
        # Imports asyncio, which a program without async actors does not need.
        from mesh_core._actors.async_server import LoopCell  # noqa: PLC0415

        return LoopCell
    return ThreadCell
