"""The recording of one actor without the values of redacted fields."""

from __future__ import annotations

from mesh_core._recording.actor_recording import ActorRecording, parameters_of, parts_of
from mesh_core._serialization.wire import read_call_meta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from typing_extensions import Buffer

    from mesh_core._core import Message
    from mesh_core._recording.recording import ProcessRecording
    from mesh_core._recording.redaction import Redaction

__all__ = ["RedactingRecording"]


class RedactingRecording(ActorRecording):
    """The recording of one actor without the values of redacted fields.

    Args:
        process: The recordings of the process.
        port: The port of the actor.
        redaction: Which fields are redacted.
        cls: The class of the actor.
    """

    __slots__ = ("_cls", "_parameters", "_redaction")

    def __init__(
        self, process: ProcessRecording, port: int, redaction: Redaction, cls: type
    ) -> None:
        super().__init__(process, port)
        self._redaction = redaction
        self._cls = cls
        # The names of the positional parameters of endpoints, by the metadata of their calls.
        self._parameters: dict[bytes, tuple[str, ...]] = {}

    def message(self, message: Message) -> tuple[int, Any]:
        """Record a message that the actor is about to serve."""
        number, opened = self._next(message)
        meta = message.meta
        parameters = self._parameters.get(meta)
        if parameters is None:
            parameters = self._parameters[meta] = self._find_parameters(meta)
        self._append_message(
            number, message, self._redaction.arguments(parts_of(opened), parameters)
        )
        return number, opened

    def returned(self, number: int, body: bytes, buffers: Sequence[Buffer]) -> None:
        """Record the result of a message; only its first outcome counts."""
        if not buffers:
            (body,) = self._redaction.value([body])  # type: ignore[assignment]
        super().returned(number, body, buffers)

    def read(self, number: int, source: str, key: str, produce: Callable[[], Any]) -> Any:
        """Record a value that the actor reads from its context, and return it."""
        if source != "environ" or not self._redaction.covers(key):
            return super().read(number, source, key, produce)
        value = produce()
        # An object in place of the text; its key is for a reader of the case.
        super().read(number, source, key, lambda: None if value is None else {"redacted": key})
        return value

    def _find_parameters(self, meta: bytes) -> tuple[str, ...]:
        member: Any = getattr(self._cls, read_call_meta(meta)[0], None)
        skip = 2 if getattr(member, "explicit_response_port", False) else 1
        return parameters_of(getattr(member, "method", member), skip)
