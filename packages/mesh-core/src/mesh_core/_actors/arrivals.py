"""Actors that come into this process: loaded, started, started anew, or refused."""

from __future__ import annotations

import os

from mesh_core._actors.actor import is_loop_driven
from mesh_core._actors.loading import Loading
from mesh_core._serialization.remote_error import encode_exception
from mesh_core._serialization.wire import ACTOR_FAILED, RAISED, STOPPED, proc_name
from mesh_core._supervision.failure import FailureDetail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._actors.cell import ActorCell
    from mesh_core._core import Message
    from mesh_core._program.runtime import Runtime

__all__ = ["Arrivals"]


class Arrivals:
    """What becomes of each spawn that reaches this process. The thread of its agent calls.

    Attributes:
        loading: The actor that is being loaded; one at a time.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._engine = runtime.engine
        self.loading: Loading | None = None
        # Spawns that wait for the end of the actor that they replace.
        self._respawns: dict[int, Message] = {}
        # The ports that spawns have come for.
        self._spawned: set[int] = set()
        # Why what was to be spawned last in some of them was not.
        self._refused: dict[int, bytes] = {}
        # Ports that were told to stop before anything was spawned there.
        self._stopped: set[int] = set()

    def take(self, message: Message) -> None:
        """Begins to load an actor, when nothing is left of the one that it replaces."""
        port = message.to_port
        old = self._runtime.actors.get(port)
        if old is not None and not old.is_ended:
            # It is to be started anew: what is left of it goes first.
            self.drop(port)
            self._respawns[port] = message
            old.halt()
            if not old.is_ended:
                return
            self._respawns.pop(port, None)
        self.loading = Loading(message)
        self.loading.start(lambda: self._runtime.tell_agent(self._runtime.me, "loaded"))

    def is_coming(self, port: int) -> bool:
        """Returns whether an actor is still to be spawned at a port; called on any thread."""
        loading = self.loading
        if loading is not None and loading.message.to_port == port:
            return not loading.is_given_up
        if port in self._respawns:
            return True
        return port not in self._spawned and port not in self._stopped

    def stopped(self, port: int) -> None:
        """Notes that nothing is spawned at a port any more, as its mesh was stopped."""
        self._stopped.add(port)

    def replaces(self, cell: ActorCell) -> bool:
        """Says whether a spawn waits for the end of an actor."""
        return cell.port in self._respawns

    def take_again(self, port: int) -> None:
        """Goes on with a spawn that has waited, if it still does."""
        message = self._respawns.get(port)
        if message is not None:
            self.take(message)
            # Afterwards, as `is_coming` is called on other threads.
            self._respawns.pop(port, None)

    def begin(self) -> None:
        """Starts the actor that was loaded, unless it was told to stop meanwhile."""
        loading = self.loading
        assert loading is not None
        try:
            self._begin(loading)
        finally:
            # Afterwards, as `is_coming` is called on other threads.
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
        message, order = loading.message, loading.order
        assert order is not None
        port, owner_proc = message.to_port, order.owner[0]
        if owner_proc != self._runtime.me:
            self._engine.watch(owner_proc)
        if port in self._spawned:
            # The frame opens only the first; what was sent behind this one waits for us.
            self._engine.open_mailbox(port, order.window)
        self._spawned.add(port)
        self._refused.pop(port, None)
        cell = _driver_of(order.cls)(self._runtime, port, message.rank, order)
        self._runtime.actors[port] = cell
        cell.start(message)

    def refuse(self, message: Message, error: BaseException, reason: str) -> None:
        """Answers a spawn, and all calls of what was to be spawned, with an error."""
        cause = encode_exception(error)
        self._engine.answer(message, RAISED, cause)
        failure_id = self._engine.new_port()
        fields = {"reason": reason, **self.place()}
        detail = FailureDetail(failure_id, ACTOR_FAILED, fields, cause, message.from_proc)
        body = self._refused[message.to_port] = detail.encode()
        self._close(message.to_port, ACTOR_FAILED, body)
        # Who spawns is who owns.
        self._runtime.tell_agent(
            message.from_proc, "actor_failed", message.to_port, message.rank, body
        )

    def place(self) -> dict[str, Any]:
        """Says where what fails here has failed."""
        return {
            "host": self._runtime.identity.host_name,
            "proc": proc_name(self._runtime.me),
            "pid": os.getpid(),
        }

    def refusal(self, port: int) -> bytes | None:
        """Gives why what was to be spawned there last was not."""
        return self._refused.get(port)

    def drop(self, port: int) -> None:
        """Gives up what is still coming there: it was told to stop."""
        message = self._respawns.pop(port, None)
        if self.loading is not None and self.loading.message.to_port == port:
            self.loading.is_given_up = True
            message = self.loading.message
        if message is not None:
            self._engine.answer(message, STOPPED, b"")
            self._close(port, STOPPED, b"")

    def _close(self, port: int, code: int, body: bytes) -> None:
        """Answers all calls of what does not come."""
        if port in self._spawned:
            # Opened first, for what was sent to it behind the spawn.
            self._engine.open_mailbox(port, 1)
        self._spawned.add(port)
        self._engine.close_mailbox(port, code, body)


def _driver_of(cls: type) -> type[ActorCell]:
    """Gives what drives the actors of a class."""
    if is_loop_driven(cls):
        from mesh_core._actors.async_server import LoopCell

        return LoopCell
    from mesh_core._actors.thread_server import ThreadCell

    return ThreadCell
