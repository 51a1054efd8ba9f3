"""The recording of the actors of this process, as entries of its log.

An actor's entries suffice to run it again elsewhere: its creation, its messages in the order in
which it started them, the replies to its own calls, and the values that it read from its context.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import OrderedDict
from fnmatch import fnmatchcase

from mesh_core._core import RecordLog
from mesh_core._recording.actor_recording import (
    BEGIN,
    CALL,
    COMPARED_LEN_MAX,
    REPLY,
    TIMEOUT,
    ActorRecording,
    parameters_of,
    parts_of,
)
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
    from mesh_core._recording.redaction import Redaction

__all__ = ["ProcessRecording"]

# Calls whose replies are not complete; beyond that, the replies of the oldest are not recorded.
_CALLS_MAX = 100_000
_RANKS_MAX = 64


class ProcessRecording:
    """The recordings of the actors of this process.

    Args:
        engine: The engine of the process.
        folder: The directory of the log, which is created.
        bytes_max: The budget of the log.
        names: Patterns for the names of the meshes whose actors are recorded.
        on_failure: Called with the port of an actor, the number of its message, or 0, and a
            description when it fails.
        redact: Patterns for the names of fields whose values are not recorded.
        on_stop: Called once with the cause if the log cannot be continued, for example because the
            disk is full. The actors continue without being recorded.

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
        redact: Sequence[str] = (),
    ) -> None:
        self._engine = engine
        self._names = tuple(names)
        self.redaction: Redaction | None = _redaction(redact) if redact else None
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
        self, message: Message | OpenMessage, mesh: str, cls: type, extent: dict[str, int]
    ) -> ActorRecording | None:
        """Record the creation of an actor; None if the actors of its mesh are not recorded.

        Args:
            message: The opened spawn request.
            mesh: The name of the mesh.
            cls: The class.
            extent: The dimensions of the mesh.
        """
        if not any(fnmatchcase(mesh, name) for name in self._names):
            return None
        fields = {
            "mesh": mesh,
            "class": f"{cls.__module__}:{cls.__qualname__}",
            "extent": extent,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "hash_seed": os.environ.get("PYTHONHASHSEED"),
            "random": random_states(),
        }
        parts = parts_of(message)
        if self.redaction is None:
            recording = ActorRecording(self, message.to_port)
        else:
            parts = self.redaction.request(parts, parameters_of(getattr(cls, "__init__", None)))
            recording = _redacting(self, message.to_port, self.redaction, cls)
        self.log.append(
            BEGIN, message.to_port, message.rank, 0, json.dumps(fields).encode(), parts,
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
        parameters: Sequence[str],
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
            parameters: The names of the positional parameters of the endpoint.
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
        if compared and self.redaction is not None:
            compared = self.redaction.arguments(compared, parameters)
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
            parts = self.redacted_value(one)
            self.log.append(REPLY, recording.port, call, one.rank << 8 | one.code, sender, parts)
        return opened

    def redacted_value(self, message: Message | OpenMessage) -> Sequence[Buffer]:
        """Return the parts of a value without redacted content."""
        parts = parts_of(message)
        return parts if self.redaction is None or message.code else self.redaction.value(parts)

    def timed_out(self, reply: int, description: str) -> None:
        """Record that a caller did not wait any longer for replies, which may still come."""
        with self._lock:
            found = self._calls.get(reply)
        if found is not None:
            recording, call, _ = found
            self.log.append(TIMEOUT, recording.port, call, 0, description.encode())


def _redaction(patterns: Sequence[str]) -> Redaction:
    # Few programs redact.
    from mesh_core._recording.redaction import Redaction  # noqa: PLC0415

    return Redaction(patterns)


def _redacting(
    process: ProcessRecording, port: int, redaction: Redaction, cls: type
) -> ActorRecording:
    # It is derived from the class in this module.
    from mesh_core._recording.redacting_recording import RedactingRecording  # noqa: PLC0415

    return RedactingRecording(process, port, redaction, cls)


def _compared(body: bytes, buffers: Sequence[Buffer]) -> list[Buffer]:
    """Return a body that a replay compares with its own, unless it is long."""
    return [body] if len(body) <= COMPARED_LEN_MAX and not buffers else []
