"""What the actors of this process receive, as entries of its log.

An actor's entries suffice to run it again elsewhere: how it was created, its messages in the order
in which it started them, the replies to its own calls, and what it read from its context.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import OrderedDict
from fnmatch import fnmatchcase

from mesh_core._core import RecordLog
from mesh_core._recording.random_states import random_states
from mesh_core._runtime.open_message import OpenMessage
from mesh_core._serialization.wire import proc_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any

    from typing_extensions import Buffer

    from mesh_core._core import Engine, Message, Targets

__all__ = [
    "BEGIN", "CALL", "FAILED", "MESSAGE", "OUTCOME", "RAISED", "READ", "REPLY",
    "RETURNED", "STOPPED", "ActorRecording", "ProcessRecording",
]  # fmt: skip

BEGIN, MESSAGE, OUTCOME, CALL, REPLY, READ, FAILED = range(1, 8)
# The last entry of a log that could not be continued; the core writes it.
STOPPED = 8
# Statuses of outcomes.
RETURNED, RAISED = range(2)
# A replay only compares its results and arguments of calls with them, so long ones are left out.
_COMPARED_LEN_MAX = 65_536
# Calls whose replies are not complete; beyond that, the replies of the oldest are not recorded.
_CALLS_MAX = 100_000
_RANKS_MAX = 64
# Different exceptions for which one actor requests a case.
_CASES_MAX = 16


class ProcessRecording:
    """The recordings of the actors of this process.

    Args:
        engine: The engine of the process.
        folder: The directory of the log, which is created.
        bytes_max: The budget of the log.
        names: Patterns for the names of the meshes whose actors are recorded.
        on_failure: Called with the port of an actor, the number of its message, or 0, and a
            description when it fails.
        on_stop: Called once with the cause if the log cannot be continued, for example because the
            disk is full. The actors go on, without being recorded.

    Raises:
        OSError: The log cannot be created.
    """

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        bytes_max: int,
        names: Sequence[str],
        on_failure: Callable[[int, int, str], object],
        on_stop: Callable[[str], object],
    ) -> None:
        self._engine = engine
        self._names = tuple(names)
        self.on_failure = on_failure
        self.log: RecordLog = RecordLog(folder, bytes_max, on_stop)
        self._lock = threading.Lock()
        # For the reply port of each call: the recording of its caller, the number of the call, and
        # the number of replies to come.
        self._calls: OrderedDict[int, tuple[ActorRecording, int, int]] = OrderedDict()

    def opened(self, message: Message) -> Message | OpenMessage:
        """Return a message whose buffers several readers can use."""
        return OpenMessage.of(message, self._engine) if message.has_parts else message

    def begin(
        self, message: Message | OpenMessage, mesh: str, class_name: str, extent: dict[str, int]
    ) -> ActorRecording | None:
        """Record the creation of an actor; None if the actors of its mesh are not recorded.

        Args:
            message: The opened spawn request.
            mesh: The name of the mesh.
            class_name: The class, as `module:qualified name`.
            extent: The dimensions of the mesh.
        """
        if not any(fnmatchcase(mesh, name) for name in self._names):
            return None
        fields = {
            "mesh": mesh,
            "class": class_name,
            "extent": extent,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "hash_seed": os.environ.get("PYTHONHASHSEED"),
            "random": random_states(),
        }
        recording = ActorRecording(self, message.to_port)
        self.log.append(
            BEGIN, message.to_port, message.rank, 0, json.dumps(fields).encode(), _parts(message),
            is_kept=True,
        )  # fmt: skip
        return recording

    def called(
        self,
        recording: ActorRecording,
        number: int,
        reply: int,
        names: tuple[str, str],
        targets: Targets,
        body: bytes,
        buffers: Sequence[Buffer],
    ) -> None:
        """Record a call of an actor.

        Args:
            recording: The recording of the caller.
            number: The number of the message that the caller serves.
            reply: The port of the replies; 0 if none are expected.
            names: The names of the mesh and of the endpoint.
            targets: The receivers.
            body: The encoded arguments.
            buffers: Their large buffers.
        """
        count = len(targets)
        ranks = [targets[index][1] for index in range(min(count, _RANKS_MAX))]
        described: dict[str, Any] = {"mesh": names[0], "endpoint": names[1], "ranks": ranks}
        compared = _compared(body, buffers)
        if not compared:
            described["length"] = len(body) + sum(memoryview(one).nbytes for one in buffers)
        if count:
            described["proc"] = proc_name(targets[0][0])
        with self._lock:
            recording.call_count += 1
            call = recording.call_count
            if reply:
                self._calls[reply] = (recording, call, count)
                if len(self._calls) > _CALLS_MAX:
                    self._calls.popitem(last=False)
        fields = json.dumps(described).encode()
        self.log.append(CALL, recording.port, call, number, fields, compared)

    def replied(self, reply: int, messages: list[Message]) -> list[Any]:
        """Record replies that a caller takes, and return them with open buffers."""
        with self._lock:
            found = self._calls.get(reply)
            if found is None:
                return messages
            recording, call, left = found
            if left > len(messages):
                self._calls[reply] = (recording, call, left - len(messages))
            else:
                del self._calls[reply]
        opened = [self.opened(message) for message in messages]
        for one in opened:
            sender = one.from_proc.to_bytes(8, "little")
            self.log.append(
                REPLY, recording.port, call, one.rank << 8 | one.code, sender, _parts(one)
            )
        return opened


class ActorRecording:
    """The recording of one actor.

    Attributes:
        port: The port of the actor.
        call_count: The number of calls that the actor has made.
    """

    __slots__ = (
        "_log",
        "_message_count",
        "_process",
        "_reported",
        "_running",
        "call_count",
        "port",
    )

    def __init__(self, process: ProcessRecording, port: int) -> None:
        self._process = process
        self._log = process.log
        self.port: int = port
        self.call_count: int = 0
        self._message_count = 0
        # The messages without an outcome.
        self._running: set[int] = set()
        self._reported: set[str] = set()

    def message(self, message: Message) -> tuple[int, Any]:
        """Record a message that the actor is about to serve.

        Returns:
            The number of the message, from 1, and the message with open buffers.
        """
        self._message_count = number = self._message_count + 1
        self._running.add(number)
        if not message.has_parts:
            self._log.append_message(self.port, number, message)
            return number, message
        opened = self._process.opened(message)
        about = number << 32 | message.rank << 1 | bool(message.from_port)
        self._log.append(MESSAGE, self.port, message.from_proc, about, message.meta, _parts(opened))
        return number, opened

    def returned(self, number: int, body: bytes, buffers: Sequence[Buffer]) -> None:
        """Record the result of a message; only its first outcome counts."""
        if number not in self._running:
            return
        self._running.discard(number)
        if buffers or len(body) > _COMPARED_LEN_MAX:
            self._log.append(OUTCOME, self.port, number, RETURNED, b"")
        else:
            self._log.append_result(self.port, number, body)

    def raised(self, number: int, error: BaseException, endpoint: str) -> None:
        """Record that a message ended with an exception, and request a case for a new one."""
        if number not in self._running:
            return
        self._running.discard(number)
        text = _text_of(error)
        self._log.append(OUTCOME, self.port, number, RAISED, text.encode()[:_COMPARED_LEN_MAX])
        self._report(number, f"{endpoint} raised {text}", _place_of(error))

    def failed(self, error: BaseException) -> None:
        """Record that the actor has failed, and request a case."""
        text = _text_of(error)
        self._log.append(FAILED, self.port, 0, 0, text.encode()[:_COMPARED_LEN_MAX], is_kept=True)
        self._report(0, text, _place_of(error))

    def read(self, number: int, source: str, key: str, produce: Callable[[], Any]) -> Any:
        """Record what the actor reads from its context, and return it.

        Args:
            number: The number of the message that the actor serves.
            source: What is read: `time`, `random` or `environ`.
            key: The name of the value.
            produce: Returns the value, which JSON can express.
        """
        value = produce()
        fields = {"source": source, "key": key, "value": value}
        self._log.append(READ, self.port, number, 0, json.dumps(fields).encode())
        return value

    def _report(self, number: int, description: str, place: str) -> None:
        if place in self._reported or len(self._reported) >= _CASES_MAX:
            return
        self._reported.add(place)
        self._process.on_failure(self.port, number, description)


def _parts(message: Message | OpenMessage) -> list[Buffer]:
    """Return the body of an opened message with its buffers."""
    return [message.body, *message.opened] if isinstance(message, OpenMessage) else [message.body]


def _compared(body: bytes, buffers: Sequence[Buffer]) -> list[Buffer]:
    """Return a body that a replay compares with its own, unless it is long."""
    return [body] if len(body) <= _COMPARED_LEN_MAX and not buffers else []


def _text_of(error: BaseException) -> str:
    """Return the type and the message of an exception, which UTF-8 can encode."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        # The class is the user's, and the recording must not replace its exception by another.
        text = f"{type(error).__name__}: its text cannot be read"
    return text.encode(errors="backslashreplace").decode()


def _place_of(error: BaseException) -> str:
    """Return the type of an exception and the line that raised it."""
    step, place = error.__traceback__, ""
    while step is not None:
        place = f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
        step = step.tb_next
    return f"{type(error).__qualname__} at {place}"
