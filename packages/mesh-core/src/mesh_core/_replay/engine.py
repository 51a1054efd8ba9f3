"""The engine of a replay: calls get their replies from the case.

It has the methods of the engine of the core. Those that would reach another process look up the
record instead; the others are passed on to an engine that has no connections.
"""

from __future__ import annotations

from collections import deque

from mesh_core._core import PortClosed
from mesh_core._errors import DeadlockError
from mesh_core._replay.errors import NotReplayable
from mesh_core._replay.offline_engine import OfflineEngine
from mesh_core._runtime.open_message import OpenMessage
from mesh_core._runtime.serving import serving
from mesh_core._serialization.wire import AGENT, POST, read_call_meta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from mesh_core._cases.case import Entry
    from mesh_core._core import Engine, Targets
    from mesh_core._replay.record import Record

__all__ = ["ReplayEngine"]


class _Replies:
    """The replies of one call.

    Attributes:
        call: The number of the recorded call.
        left: The replies that were recorded and not taken yet, in the order of the record.
        expected: The number of replies without which the call is not complete.
        is_stream: Whether replies are taken one by one.
    """

    __slots__ = ("call", "expected", "is_stream", "left")

    def __init__(self, call: int, expected: int) -> None:
        self.call = call
        self.expected = expected
        self.left: deque[OpenMessage] = deque()
        self.is_stream = False


class ReplayEngine(OfflineEngine):
    """Answers the calls of one actor from its record.

    Args:
        engine: An engine without connections, which creates ports.
        record: The record of the actor.
        is_lazy: Whether a reply becomes available only when `deliver` is called.
    """

    def __init__(self, engine: Engine, record: Record, *, is_lazy: bool) -> None:
        super().__init__(engine)
        self._record = record
        self._is_lazy = is_lazy
        self._replies: dict[int, _Replies] = {}
        # The reply port of each recorded call that the actor has made.
        self._ports: dict[int, int] = {}
        # Replies that came before the actor made the call.
        self._early: dict[int, list[OpenMessage]] = {}
        # The numbers of channels, and how many of their values have arrived, by port.
        self._channels: dict[int, int] = {}
        self._arrived: dict[int, int] = {}
        self._closed: set[int] = set()

    def call(
        self,
        kind: int,
        targets: Targets,
        port: int,
        meta: bytes,
        body: bytes,
        buffers: Sequence[Buffer],
        _window: int,
        _timeout: float | None,
        _on_full: Callable[[], bool] | None,
        _origin: bytes | None = None,
    ) -> int:
        """Match a call with the record, and return the port of its replies."""
        count = len(targets)
        done = self._agent_replies(kind, port, meta, count)
        reply = self._engine.new_port()
        if done is not None:
            found = self._replies[reply] = _Replies(0, count)
            found.left.extend(done)
            return reply
        call = self._matched(targets, meta, body, buffers)
        found = self._replies[reply] = _Replies(call, count)
        self._ports[call] = reply
        if self._is_lazy:
            found.left.extend(self._early.pop(call, ()))
        else:
            found.left.extend(self._record.replies(call))
        return reply

    def send(
        self,
        kind: int,
        targets: Targets,
        port: int,
        meta: bytes,
        body: bytes,
        buffers: Sequence[Buffer],
        *_: object,
    ) -> None:
        """Match a message without replies with the record."""
        if kind != POST and port != AGENT:
            self._matched(targets, meta, body, buffers)

    def _matched(
        self, targets: Targets, meta: bytes, body: bytes, buffers: Sequence[Buffer]
    ) -> int:
        current = serving()
        number = 0 if current is None else current.number
        name, _, _ = read_call_meta(meta)
        ranks = [targets[index][1] for index in range(len(targets))]
        return self._record.match_call(number, name, ranks, body, buffers)

    def deliver(self, call: int, message: OpenMessage) -> int:
        """Make a reply available; return the port on which it arrives, or 0 if it is not known."""
        port = self._ports.get(call)
        if port is None:
            self._early.setdefault(call, []).append(message)
            return 0
        self._replies[port].left.append(message)
        return port

    def is_ready(self, port: int) -> bool:
        """Return whether `take` would return replies."""
        found = self._replies.get(port)
        if found is None:
            return False
        return bool(found.left) if found.is_stream else len(found.left) >= found.expected

    def wait(self, port: int, timeout: float | None) -> list[OpenMessage] | None:
        """Return the replies of a call.

        A timeout expires immediately if it expired in the recorded run or no reply was recorded.

        Raises:
            TimeoutError: The timeout has expired.
            DeadlockError: The recorded wait ended with it.
            RecordEnded: The recorded run ended before the reply.
        """
        found = self._replies[port]
        expired = None if timeout is None else self._record.timeout(found.call)
        if expired is not None:
            raise TimeoutError(expired)
        if self._is_lazy:
            # A thread that waits cannot be interleaved with other messages.
            found.left.extend(self._record.replies(found.call)[len(found.left) :])
        if self.is_ready(port):
            return self._taken(found)
        if timeout is not None:
            return None
        current = serving()
        deadlock = None if current is None else self._record.deadlock(current.number)
        if deadlock is not None:
            raise DeadlockError(deadlock)
        raise self._record.ended(f"the reply to call {found.call} was not recorded")

    def take(self, port: int) -> tuple[list[OpenMessage], bool]:
        """Return the replies that are available, and whether they are the last."""
        found = self._replies[port]
        taken = self._taken(found)
        return taken, not found.left

    def _taken(self, found: _Replies) -> list[OpenMessage]:
        if found.is_stream:
            return [found.left.popleft()]
        taken = list(found.left)
        found.left.clear()
        return taken

    def set_stream(self, port: int) -> None:
        """Take the replies of a call one by one."""
        self._replies[port].is_stream = True

    def cancel(self, port: int) -> bool:
        """Cancel a call; return whether it was pending."""
        return self._replies.pop(port, None) is not None

    def reply(self, *_: object) -> None:
        """Ignore a reply: there is no caller."""

    def close_mailbox(self, port: int, *_: object) -> None:
        """Close a channel; ignore the end of the actor."""
        self._closed.add(port)

    def receive_nowait(self, port: int, _max: int) -> list[OpenMessage]:
        """Return the next value of a channel, if it has arrived.

        Raises:
            PortClosed: The actor has closed the channel.
        """
        if port in self._closed:
            raise PortClosed
        values = self._values(port)
        if not values or (self._is_lazy and not self._arrived.get(port)):
            return []
        if self._is_lazy:
            self._arrived[port] -= 1
        return [self._record.value(values.popleft())]

    def opened(self, port: int, channel: int) -> None:
        """Note the port of a channel that the actor opens."""
        self._channels[port] = channel

    def arrive(self, channel: int) -> int:
        """Make the next value of a channel available; return the port of the channel."""
        port = next((port for port, number in self._channels.items() if number == channel), 0)
        self._arrived[port] = self._arrived.get(port, 0) + 1
        return port

    def arm_wait(self, _port: int) -> None:
        """Do nothing: recorded values are available immediately."""

    def wait_ready(self, port: int, timeout: float | None) -> None:
        """Return immediately: a value was recorded, or the timeout expires.

        Raises:
            RecordEnded: No further value was recorded, and the wait has no timeout.
        """
        if not self._values(port) and timeout is None:
            raise self._record.ended("no further value was received on the channel")

    def _values(self, port: int) -> deque[Entry]:
        channel = self._channels.get(port)
        if channel is None:
            raise NotReplayable("a channel that the actor has not opened is not recorded")
        return self._record.received(channel)
