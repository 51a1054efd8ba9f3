"""The record of one actor, as its replay uses it: expected calls and known values."""

from __future__ import annotations

from base64 import b64decode
from collections import deque
from typing import Any

from mesh_core._cases.case import Omitted
from mesh_core._replay.compare import differs
from mesh_core._replay.errors import RecordEnded, ReplayDiverged, ReplayError
from mesh_core._runtime.open_message import OpenMessage
from mesh_core._serialization.wire import proc_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from mesh_core._cases.case import Entry, RecordedActor

__all__ = ["Record"]


class Record:
    """The recorded events of one actor.

    Attributes:
        actor: The actor.
        failing: The number of the message whose exception ended the record, if any.
        last: The number of its last message; 0 if it received none.

    Raises:
        ReplayError: The creation of the actor, or its first messages, are not in the case.
    """

    def __init__(self, actor: RecordedActor) -> None:
        self.actor = actor
        entries = actor.entries
        if not entries or entries[0].kind != "begin":
            raise ReplayError(f"the case does not contain how {_name(actor)} was created")
        if actor.evicted:
            raise ReplayError(
                f"the first {actor.evicted:,} messages of {_name(actor)} were evicted from its "
                "recording: record with a larger record_bytes_max"
            )
        self._begin = entries[0]
        self.messages: list[Entry] = [one for one in entries if one.kind == "message"]
        self._outcomes = {one.fields["n"]: one for one in entries if one.kind == "outcome"}
        self.failed: Entry | None = next((one for one in entries if one.kind == "failed"), None)
        self._calls: dict[int, deque[Entry]] = {}
        self._reads: dict[int, deque[Entry]] = {}
        self._replies: dict[int, list[Entry]] = {}
        self._timeouts: dict[int, deque[str]] = {}
        self._received: dict[int, deque[Entry]] = {}
        for one in entries:
            if one.kind == "call":
                self._calls.setdefault(one.fields["n"], deque()).append(one)
            elif one.kind == "read":
                self._reads.setdefault(one.fields["n"], deque()).append(one)
            elif one.kind == "received":
                self._received.setdefault(one.fields["c"], deque()).append(one)
            elif one.kind == "timeout":
                self._timeouts.setdefault(one.fields["k"], deque()).append(one.fields["error"])
            elif one.kind == "reply":
                self._replies.setdefault(one.fields["k"], []).append(one)
        ended = [one for one in entries if one.kind == "outcome"]
        # The number of the message with which the actor failed, at the end of its record.
        self.failing: int | None = (
            ended[-1].fields["n"] if ended and ended[-1].fields["status"] == "raised" else None
        )
        self.last: int = self.messages[-1].fields["n"] if self.messages else 0

    @property
    def begin_fields(self) -> dict[str, Any]:
        """The fields of the entry of the creation."""
        return self._begin.fields

    def spawn_message(self) -> OpenMessage:
        """Return the message that created the actor."""
        return _message(self._begin, "the constructor arguments")

    def message(self, entry: Entry) -> OpenMessage:
        """Return the message of an entry."""
        found = _message(entry, f"message #{entry.fields['n']}")
        found.meta = b64decode(entry.fields["meta"])
        found.from_proc = proc_of(entry.fields["from"])
        # Any port: replies are discarded.
        found.from_port = 1 if entry.fields["replies"] else 0
        return found

    def outcome(self, number: int) -> Entry | None:
        """Return how a message ended; None if it did not end."""
        return self._outcomes.get(number)

    def match_call(
        self,
        number: int,
        name: str,
        ranks: list[int],
        body: bytes,
        buffers: Sequence[Buffer],
    ) -> int:
        """Return the number of the recorded call that the actor makes again.

        Args:
            number: The number of the message that the actor serves.
            name: The endpoint.
            ranks: The ranks of the receivers.
            body: The encoded arguments.
            buffers: Their large buffers.

        Raises:
            ReplayDiverged: The recorded run made another call here.
            RecordEnded: The recorded run ended before this call.
        """
        calls = self._calls.get(number)
        if not calls:
            if not self.is_complete(number):
                raise self.ended(f"the call of {name!r} was not reached in the recorded run")
            raise ReplayDiverged(number, "the calls", "no further call", f"a call of {name!r}")
        entry = calls.popleft()
        fields = entry.fields
        recorded = f"{fields['endpoint']} of {fields['mesh']}{fields['ranks']}"
        if (fields["endpoint"], fields["ranks"]) != (name, ranks[: len(fields["ranks"])]):
            raise ReplayDiverged(number, "a call", recorded, f"{name}{ranks}")
        if entry.payloads and isinstance(entry.payloads[0], bytes):
            found = differs(entry.payloads[0], body, buffers)
            if found is not None:
                raise ReplayDiverged(number, f"the arguments of {recorded}", *found)
        return int(fields["k"])

    def replies(self, call: int) -> list[OpenMessage]:
        """Return the replies to a call, in the order in which the actor took them."""
        return [self.reply(entry) for entry in self._replies.get(call, ())]

    def received(self, channel: int) -> deque[Entry]:
        """Return the messages that arrived on a channel and that this run has not taken yet."""
        return self._received.setdefault(channel, deque())

    def value(self, entry: Entry) -> OpenMessage:
        """Return the message of an entry of a channel."""
        fields = entry.fields
        found = _message(entry, f"a value of channel {fields['c']}")
        found.kind, found.code = fields["kind"], fields["code"]
        found.meta = b64decode(fields["meta"])
        found.from_proc = proc_of(fields["from"])
        return found

    def timeout(self, call: int) -> str | None:
        """Return the text of the next timeout of a call; None if its replies came then."""
        texts = self._timeouts.get(call)
        return texts.popleft() if texts else None

    def reply(self, entry: Entry) -> OpenMessage:
        """Return the reply of an entry."""
        found = _message(entry, f"a reply to call {entry.fields['k']}")
        found.code = entry.fields["code"]
        found.from_proc = proc_of(entry.fields["from"])
        return found

    def reads(self) -> dict[int, deque[Entry]]:
        """Return the values that each message read from the actor's context, in order."""
        return {number: deque(entries) for number, entries in self._reads.items()}

    def read(self, number: int, source: str, key: str, produce: Callable[[], Any]) -> Any:
        """Return the value that the actor read from its context here, instead of a new value.

        Raises:
            ReplayDiverged: The recorded run read another value here.
            RecordEnded: The recorded run ended before this read.
        """
        reads = self._reads.get(number)
        if not reads:
            if not self.is_complete(number):
                raise self.ended(f"the {source} was not read in the recorded run")
            raise ReplayDiverged(
                number, "the context", "nothing further is read", f"{source} {key}"
            )
        fields = reads.popleft().fields
        if (fields["source"], fields["key"]) != (source, key):
            before = f"{fields['source']} {fields['key']}"
            raise ReplayDiverged(number, "the context", before, f"{source} {key}")
        return fields["value"]

    def is_complete(self, number: int) -> bool:
        """Return whether the recorded run of a message returned."""
        outcome = self._outcomes.get(number)
        return outcome is not None and outcome.fields["status"] == "value"

    def deadlock(self, number: int) -> str | None:
        """Return the message of the deadlock with which the recorded run of a message ended."""
        outcome = self._outcomes.get(number)
        error = "" if outcome is None else outcome.fields.get("error", "")
        kind, _, text = error.partition(": ")
        return text if kind == "DeadlockError" else None

    def ended(self, why: str) -> RecordEnded:
        """Create the exception for an action after the end of the record."""
        return RecordEnded(f"the record of {_name(self.actor)} ends here: {why}")


def _name(actor: RecordedActor) -> str:
    return f"{actor.mesh}[{actor.rank}]"


def _message(entry: Entry, what: str) -> OpenMessage:
    parts: list[bytes] = []
    for part in entry.payloads:
        if isinstance(part, Omitted):
            raise ReplayError(
                f"{what} is not complete in the case: {part.length:,} bytes were not kept "
                f"({part.reason}): record with a larger record_bytes_max"
            )
        parts.append(part)
    # Actors may write to the arrays that they receive.
    opened = [bytearray(part) for part in parts[1:]]
    return OpenMessage(body=parts[0], opened=opened, rank=entry.fields["rank"])
