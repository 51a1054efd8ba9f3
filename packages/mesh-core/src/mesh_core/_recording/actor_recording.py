"""The recording of one actor of this process, as entries of the log."""

from __future__ import annotations

import json
from base64 import b64encode

from mesh_core._runtime.open_message import OpenMessage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from typing_extensions import Buffer

    from mesh_core._core import Message
    from mesh_core._recording.recording import ProcessRecording

__all__ = [
    "BEGIN", "CALL", "COMPARED_LEN_MAX", "FAILED", "MESSAGE", "OUTCOME", "RAISED", "READ",
    "RECEIVED", "REPLY", "RETURNED", "STOPPED", "TIMEOUT", "ActorRecording", "parameters_of",
    "parts_of",
]  # fmt: skip

BEGIN, MESSAGE, OUTCOME, CALL, REPLY, READ, FAILED = range(1, 8)
# The last entry of a log that could not be continued; the core writes it.
STOPPED = 8
TIMEOUT, RECEIVED = 9, 10
# Statuses of outcomes.
RETURNED, RAISED = range(2)
# A replay only compares its results and arguments of calls with them, so long ones are left out.
COMPARED_LEN_MAX = 65_536
# Different exceptions for which one actor requests a case.
_CASES_MAX = 16


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
        if message.has_parts:
            number, opened = self._next(message)
            self._append_message(number, message, parts_of(opened))
            return number, opened
        self._message_count = number = self._message_count + 1
        self._running.add(number)
        self._log.append_message(self.port, number, message)
        return number, message

    def _next(self, message: Message) -> tuple[int, Any]:
        """Count a message, and return its number and the message with open buffers."""
        self._message_count = number = self._message_count + 1
        self._running.add(number)
        return number, self._process.opened(message)

    def _append_message(self, number: int, message: Message, parts: Sequence[Buffer]) -> None:
        about = number << 32 | message.rank << 1 | bool(message.from_port)
        self._log.append(MESSAGE, self.port, message.from_proc, about, message.meta, parts)

    def returned(self, number: int, body: bytes, buffers: Sequence[Buffer]) -> None:
        """Record the result of a message; only its first outcome counts."""
        if number not in self._running:
            return
        self._running.discard(number)
        if buffers or len(body) > COMPARED_LEN_MAX:
            self._log.append(OUTCOME, self.port, number, RETURNED, b"")
        else:
            self._log.append_result(self.port, number, body)

    def raised(self, number: int, error: BaseException, endpoint: str) -> None:
        """Record that a message ended with an exception, and request a case for a new one."""
        if number not in self._running:
            return
        self._running.discard(number)
        text = _text_of(error)
        self._log.append(OUTCOME, self.port, number, RAISED, text.encode()[:COMPARED_LEN_MAX])
        self._report(number, f"{endpoint} raised {text}", _place_of(error))

    def failed(self, error: BaseException) -> None:
        """Record that the actor has failed, and request a case."""
        text = _text_of(error)
        self._log.append(FAILED, self.port, 0, 0, text.encode()[:COMPARED_LEN_MAX], is_kept=True)
        self._report(0, text, _place_of(error))

    def read(self, number: int, source: str, key: str, produce: Callable[[], Any]) -> Any:
        """Record a value that the actor reads from its context, and return it.

        Args:
            number: The number of the message that the actor serves.
            source: The source of the value: `time`, `random` or `environ`.
            key: The name of the value.
            produce: Returns the value, which JSON can express.
        """
        value = produce()
        fields = {"source": source, "key": key, "value": value}
        self._log.append(READ, self.port, number, 0, json.dumps(fields).encode())
        return value

    def received(self, channel: int, message: Message) -> Any:
        """Record a message that arrived on a channel, and return it with open buffers."""
        opened = self._process.opened(message)
        fields = {
            "kind": opened.kind,
            "code": opened.code,
            "rank": opened.rank,
            "meta": b64encode(opened.meta).decode(),
        }
        parts = self._process.redacted_value(opened)
        self._log.append(
            RECEIVED, self.port, channel, opened.from_proc, json.dumps(fields).encode(), parts
        )
        return opened

    def _report(self, number: int, description: str, place: str) -> None:
        if place in self._reported or len(self._reported) >= _CASES_MAX:
            return
        self._reported.add(place)
        self._process.on_failure(self.port, number, description)


def parts_of(message: Message | OpenMessage) -> list[Buffer]:
    """Return the body of an opened message with its buffers."""
    return [message.body, *message.opened] if isinstance(message, OpenMessage) else [message.body]


def parameters_of(method: Any, skip: int = 1) -> tuple[str, ...]:
    """Return the names of the positional parameters of a method without the first ones."""
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    code = getattr(method, "__code__", None)
    return () if code is None else code.co_varnames[skip : code.co_argcount]


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
