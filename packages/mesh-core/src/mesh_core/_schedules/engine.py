"""The engine of a run: calls between its actors become events, others get recorded replies."""

from __future__ import annotations

from collections import deque
from typing import Any

from mesh_core._replay.compare import differs, shown
from mesh_core._replay.errors import NotReplayable
from mesh_core._replay.offline_engine import OfflineEngine
from mesh_core._runtime.open_message import OpenMessage
from mesh_core._runtime.runtime import value_of
from mesh_core._runtime.serving import serving
from mesh_core._schedules.baton import baton_thread
from mesh_core._serialization.pickler import encode_value
from mesh_core._serialization.remote_error import encode_exception
from mesh_core._serialization.wire import AGENT, CALL, RAISED, read_call_meta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from mesh_core._core import Engine, Targets
    from mesh_core._schedules.actor import RunningActor
    from mesh_core._schedules.inputs import RecordedCall
    from mesh_core._schedules.world import World

__all__ = ["ScheduleEngine"]

_LEN_MAX = 1 << 60
_ENDED = "its actor made a call of {name!r} that it did not make in the recorded run"


class _Call:
    """A call whose replies are not complete.

    Attributes:
        caller: The actor that made it; None for a request to an agent.
        recorded: The same call in the recorded run, if it made it.
        left: The number of replies that have not arrived.
        arrived: The replies that have arrived and were not taken yet.
        is_stream: Whether replies are taken one by one.
    """

    __slots__ = ("arrived", "caller", "is_stream", "left", "name", "recorded")

    def __init__(
        self, caller: RunningActor | None, name: str, recorded: RecordedCall | None, count: int
    ) -> None:
        self.caller = caller
        self.name = name
        self.recorded = recorded
        self.left = count
        self.arrived: deque[OpenMessage] = deque()
        self.is_stream = False


class ScheduleEngine(OfflineEngine):
    """The engine of all actors of a run.

    It has the methods of the engine of the core. The others are passed on to an engine that has no
    connections.

    Args:
        engine: An engine without connections, which creates ports.
        world: The run.
    """

    def __init__(self, engine: Engine, world: World) -> None:
        super().__init__(engine)
        self._world = world
        self._calls: dict[int, _Call] = {}
        # The recorded calls that an actor has not made yet.
        self._recorded: dict[str, list[RecordedCall]] = {
            one.name: list(one.calls) for one in world.inputs.actors
        }

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
        """Send messages to actors of the run, and return the port of their replies."""
        count = len(targets)
        done = self._agent_replies(kind, port, meta, count)
        reply = self._engine.new_port()
        if done is not None:
            found = self._calls[reply] = _Call(None, "", None, 0)
            found.arrived.extend(done)
            return reply
        caller = self._caller()
        name = read_call_meta(meta)[0]
        ranks = [targets[index][1] for index in range(count)]
        recorded = self._recorded_call(caller, name, ranks, body, buffers)
        self._calls[reply] = _Call(caller, name, recorded, count)
        self._send(caller, targets, port, meta, body, buffers, reply, recorded)
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
        """Send messages without replies to actors of the run."""
        if kind == CALL and port != AGENT:
            caller = self._caller()
            ranks = [targets[index][1] for index in range(len(targets))]
            recorded = self._recorded_call(caller, read_call_meta(meta)[0], ranks, body, buffers)
            self._send(caller, targets, port, meta, body, buffers, 0, recorded)

    def _send(
        self,
        caller: RunningActor,
        targets: Targets,
        port: int,
        meta: bytes,
        body: bytes,
        buffers: Sequence[Buffer],
        reply: int,
        recorded: RecordedCall | None,
    ) -> None:
        for index in range(len(targets)):
            proc, rank = targets[index]
            receiver = self._world.actor_at(proc, port)
            if receiver is not None:
                # Each receiver gets its own copy of the arrays.
                message = OpenMessage(
                    body=body,
                    opened=[bytearray(one) for one in buffers],
                    rank=rank,
                    from_proc=caller.proc,
                    from_port=reply,
                    meta=meta,
                )
                self._world.sent(caller, receiver, message)
            elif reply:
                self._reply_from_record(caller, reply, rank, recorded)

    def _reply_from_record(
        self, caller: RunningActor, reply: int, rank: int, recorded: RecordedCall | None
    ) -> None:
        """Reply in the name of an actor that does not run."""
        found = None if recorded is None else recorded.replies.get(rank)
        if recorded is None:
            raise self._world.left_record(_ENDED.format(name=self._calls[reply].name))
        if found is None:
            # It did not reply in the recorded run either.
            return
        time_ns, entry = found
        content = caller.described.record.reply(entry)
        content.to_port = reply
        self._world.replied(caller, recorded.mesh, content, time_ns)

    def _recorded_call(
        self,
        caller: RunningActor,
        name: str,
        ranks: list[int],
        body: bytes,
        buffers: Sequence[Buffer],
    ) -> RecordedCall | None:
        """Take the first recorded call of the actor with the same receivers and arguments."""
        calls = self._recorded[caller.name]
        same = [one for one in calls if one.endpoint == name and one.ranks == ranks[:64]]
        for one in same:
            if one.arguments is None or differs(one.arguments, body, buffers) is None:
                calls.remove(one)
                return one
        return None

    def answer(self, message: OpenMessage, value: object) -> None:
        """Send the result of a message."""
        if message.from_port in self._calls:
            try:
                body, buffers = encode_value(value, _LEN_MAX, "result")
            except Exception as error:
                self.answer_error(message, error)
            else:
                self.reply(message, 0, body, buffers)

    def answer_error(self, message: OpenMessage, error: BaseException) -> None:
        """Send the exception of a message."""
        self.reply(message, RAISED, encode_exception(error))

    def reply(self, message: Any, code: int, body: bytes, buffers: Sequence[Buffer] = ()) -> None:
        """Send a reply to an actor of the run; replies to others end the recorded message."""
        call = self._calls.get(message.from_port)
        if call is None or call.caller is None:
            return
        content = OpenMessage(
            body=body,
            opened=[bytearray(one) for one in buffers],
            code=code,
            rank=message.rank,
            from_proc=self._caller().proc,
            to_port=message.from_port,
        )
        recorded = None if call.recorded is None else call.recorded.replies.get(message.rank)
        time_ns = None if recorded is None else recorded[0]
        self._world.replied(call.caller, self._caller().name, content, time_ns)

    def deliver(self, content: OpenMessage) -> str:
        """Make a reply available to its caller; return a short description of it."""
        call = self._calls.get(content.to_port)
        if call is None:
            return ""
        call.left -= 1
        call.arrived.append(content)
        if content.code:
            return f"{call.name} raised"
        return f"{call.name} -> {shown(value_of(content))}"

    def is_ready(self, port: int) -> bool:
        """Return whether `take` would return replies."""
        found = self._calls.get(port)
        return found is not None and bool(found.arrived if found.is_stream else found.left == 0)

    def wait(self, port: int, timeout: float | None) -> list[OpenMessage] | None:
        """Return the replies of a call; other actors run until they arrive."""
        if not self.is_ready(port):
            if baton_thread() is None:
                raise NotReplayable("an async endpoint waits without await")
            self._world.block(self._caller(), port, timeout)
            if not self.is_ready(port):
                return None
        return self.take(port)[0]

    def take(self, port: int) -> tuple[list[OpenMessage], bool]:
        """Return the replies that are available, and whether they are the last."""
        found = self._calls[port]
        if found.is_stream:
            taken = [found.arrived.popleft()]
        else:
            taken = list(found.arrived)
            found.arrived.clear()
        is_last = not found.left and not found.arrived
        return taken, is_last

    def set_stream(self, port: int) -> None:
        """Take the replies of a call one by one."""
        self._calls[port].is_stream = True

    def cancel(self, port: int) -> bool:
        """Cancel a call; return whether it was pending."""
        return self._calls.pop(port, None) is not None

    def opened(self, _port: int, _channel: int) -> None:
        """Do nothing: a run ends when an actor receives on a channel."""

    def close_mailbox(self, *_: object) -> None:
        """Ignore the end of an actor."""

    def receive(self, *_: object) -> list[OpenMessage]:
        """Refuse to receive values on a channel.

        Raises:
            NotReplayable: Always: their order is not varied.
        """
        raise NotReplayable("values of channels arrive in the recorded order only")

    receive_nowait = receive
    arm_wait = receive
    wait_ready = receive

    def _caller(self) -> RunningActor:
        current = serving()
        assert current is not None, "only actors of the run make calls"
        return self._world.actor_of(current.cell)
