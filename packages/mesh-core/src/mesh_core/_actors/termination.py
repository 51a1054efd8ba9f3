"""Termination of one actor: the order of its steps, the notifications and the time limits.

An actor terminates in steps: it stops accepting messages, the running endpoint returns, the meshes
that it owns stop, and `__cleanup__` runs. The actor performs the steps on its own thread or event
loop. A separate thread monitors them and abandons the actor if a step exceeds its time limit. So
termination always completes, and every waiting process gets exactly one notification.
"""

from __future__ import annotations

import threading
import traceback

from mesh_core._calls.port_transit import drop_ports
from mesh_core._configuration.config import effective
from mesh_core._errors import DeadlineExceeded
from mesh_core._observability.events import recorder
from mesh_core._serialization.remote_error import encode_exception

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mesh_core._actors.cell import ActorCell, ActorFailure
    from mesh_core._core import Message
    from mesh_core._supervision.failure import FailureDetail

__all__ = ["Ending"]


class Ending:
    """State of the termination of one actor."""

    def __init__(self, cell: ActorCell) -> None:
        self._cell = cell
        self._lock = threading.Lock()
        self.error: ActorFailure | None = None
        self.grace_s: float | None = None
        # Events that mark the completed steps, in order.
        self.is_begun: threading.Event = threading.Event()
        self.is_idle: threading.Event = threading.Event()
        self.is_childless: threading.Event = threading.Event()
        self.is_over: threading.Event = threading.Event()
        # Requests to be answered when the termination has completed.
        self._waiting: list[Message] = []
        self._is_finished = False
        self._detail: FailureDetail | None = None
        # Messages that were rejected because of the termination.
        self._rejected: list[Message] = []
        self._problem: BaseException | None = None

    def begin(self, error: ActorFailure | None) -> None:
        """Close the mailbox and notify callers and the owner; only the first call counts."""
        cell = self._cell
        with self._lock:
            if self.is_begun.is_set():
                return
            self.error = error
            detail = self._detail = cell.detail(error)
            self.is_begun.set()
        if recorder.is_on and error is not None:
            cause = error.__cause__ or error
            recorder.record(
                "failed",
                actor=cell.port,
                call=detail.failure_id,
                rank=cell.rank,
                code=detail.code,
                text=cell.name,
                subject=cause,
            )
        if cell.recording is not None and error is not None:
            cell.recording.failed(error.__cause__ or error)
        body = detail.encode()
        cell.engine.close_mailbox(cell.port, detail.code, body)
        self.reject(cell.running_messages())
        if error is not None or cell.is_leaving:
            news = "actor_failed" if error is not None else "actor_left"
            cell.runtime.tell_agent(cell.request.owner[0], news, cell.port, cell.rank, body)
        threading.Thread(
            target=self._enforce_limits, name=f"mesh-end-{cell.name}", daemon=True
        ).start()

    def reject(self, messages: Iterable[Message]) -> None:
        """Reply to messages with the reason for the termination; once for each message.

        `begin` rejects the messages that it finds in the mailbox. The actor rejects the messages
        that were in transit from the mailbox to the actor at that time.
        """
        cell = self._cell
        with self._lock:
            detail = self._detail
            assert detail is not None, "messages are rejected after `begin`"
            known = self._rejected
            found = [one for one in messages if not any(one is each for each in known)]
            known.extend(found)
        for message in found:
            drop_ports(message)
            if message.from_port:
                cell.engine.reply(message, detail.code, detail.encode())

    def drain(self, grace_s: float) -> None:
        """Wait for a stop message behind the queue, as long as messages are being served."""
        cell = self._cell
        seen = cell.served_count
        while not self.is_begun.wait(grace_s):
            if cell.served_count == seen:
                self._problem = self._late(cell.running_name, grace_s)
                self.grace_s = min(grace_s, 1.0)
                cell.halt()
                return
            seen = cell.served_count

    def stop_children(self) -> None:
        """Stop the meshes that the actor owns and wait until they have stopped."""
        self.is_idle.set()
        self._cell.runtime.ownership.end_owner(self._cell.port, self.error is not None)
        self.is_childless.set()

    def finish(self, problem: BaseException | None = None) -> None:
        """Mark the actor as terminated; only the first call counts.

        Args:
            problem: An error of the termination itself.
        """
        cell = self._cell
        with self._lock:
            if self._is_finished:
                return
            self._is_finished = True
            self._problem = self._problem or problem
            waiting, self._waiting = self._waiting, []
        if recorder.is_on:
            recorder.record("stopped", actor=cell.port, rank=cell.rank, text=cell.name)
        cell.runtime.ownership.owner_stopped(cell.port)
        for message in waiting:
            self._answer(message)
        if self._problem is not None and not waiting:
            # No request waits for the result, so the problem can only be reported in the log.
            traceback.print_exception(self._problem)
            self._problem = None
        # The process may exit as soon as this event is set.
        self.is_over.set()
        cell.runtime.agent.cell_ended(cell)

    def failure(self) -> bytes | None:
        """Return the encoded failure that the owner was notified of, if the actor has failed."""
        detail = self._detail
        return None if self.error is None or detail is None else detail.encode()

    def closed_with(self) -> tuple[int, bytes] | None:
        """Return the code and the detail with which the mailbox is closed; None if it is open."""
        detail = self._detail
        return None if detail is None else (detail.code, detail.encode())

    def answer_when_over(self, message: Message) -> None:
        """Reply once the actor has terminated, with any problem that occurred."""
        with self._lock:
            if not self._is_finished:
                self._waiting.append(message)
                return
        self._answer(message)

    def _answer(self, message: Message) -> None:
        """Reply with the outcome; the requester knows whether it already handled the failure."""
        problem = None if self._problem is None else encode_exception(self._problem)
        self._cell.answer(message, (self.failure(), problem))

    def _enforce_limits(self) -> None:
        """Abandon the actor if a step of its termination exceeds its time limit."""
        cell, config = self._cell, effective()
        grace_s = config.stop_grace_s if self.grace_s is None else self.grace_s
        if not self.is_idle.wait(grace_s):
            late = self._late(cell.running_name, grace_s)
            self.stop_children()
            self.finish(late)
            return
        self.is_childless.wait()
        limit_s = config.cleanup_timeout_s
        if not self.is_over.wait(limit_s):
            self.finish(self._late("__cleanup__", limit_s))

    def _late(self, name: str, limit_s: float) -> DeadlineExceeded:
        return DeadlineExceeded(name, limit_s, self._cell.name, rank=self._cell.rank)
