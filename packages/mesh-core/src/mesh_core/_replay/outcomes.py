"""How the messages of a replay end, compared with the recorded run."""

from __future__ import annotations

from mesh_core._replay.compare import differs, shown
from mesh_core._replay.errors import ReplayDiverged
from mesh_core._serialization.pickler import encode_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._replay.record import Record

__all__ = ["Outcomes"]

_LEN_MAX = 1 << 60


class Outcomes:
    """The outcomes of one run.

    Args:
        record: The record of the actor.

    Attributes:
        error: The exception with which the actor failed, as in the recorded run.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self.error: BaseException | None = None

    def failed(self, number: int, error: Exception) -> None:
        """Handle the exception of a message.

        Raises:
            ReplayDiverged: The recorded run returned a value, or raised another exception.
        """
        outcome = self._record.outcome(number)
        text = f"{type(error).__name__}: {error}"
        recorded = None if outcome is None else outcome.fields.get("error")
        if outcome is not None and recorded is None:
            raise ReplayDiverged(number, "the outcome", "a result", text) from error
        if recorded is not None and _kind(recorded) != _kind(text):
            raise ReplayDiverged(number, "the exception", recorded, text) from error
        # An exception before the failure reached the caller, and the actor continued.
        if outcome is None or number == self._record.failing:
            self.error = error
            if recorded not in (None, text):
                error.add_note(f"the recorded message was: {recorded}")

    def returned(self, number: int, value: object) -> None:
        """Handle the result of a message.

        Raises:
            ReplayDiverged: The recorded run raised an exception or returned another value.
        """
        outcome = self._record.outcome(number)
        if outcome is None or number == self._record.failing:
            # Either the process died here, or the cause of the failure was corrected.
            return
        recorded = outcome.fields.get("error")
        if recorded is not None:
            raise ReplayDiverged(number, "the outcome", recorded, shown(value))
        if outcome.payloads and isinstance(outcome.payloads[0], bytes):
            body, buffers = encode_value(value, _LEN_MAX)
            found = differs(outcome.payloads[0], body, buffers)
            if found is not None:
                raise ReplayDiverged(number, "the result", *found)


def _kind(text: str) -> str:
    """Return the type in the text of an exception."""
    return text.partition(":")[0]
