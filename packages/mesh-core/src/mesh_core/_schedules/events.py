"""Possible next events of a run: an actor starts a message or takes a reply, or a timer fires."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._runtime.open_message import OpenMessage
    from mesh_core._schedules.actor import RunningActor
    from mesh_core._schedules.inputs import Input

__all__ = ["Event", "EventId"]

# Equal in all schedules of a case: the receiver, the sender, and the position between them.
EventId = tuple[str, str, int]


class Event:
    """Something that reaches an actor.

    Attributes:
        identity: Names the event in every schedule.
        actor: The actor that it reaches.
        sender: The name of the actor that sent it, or of the process outside.
        content: The message or reply; None for a timer.
        is_reply: Whether it is a reply.
        time_ns: When it happened in the recorded run; None if it did not.
        chain: The number of a sequence of events in which each event causes the next.
        input: The recorded message, if it comes from outside.
        text: A short description, which is known once the event has happened.
    """

    __slots__ = (
        "actor", "chain", "content", "identity", "input", "is_reply", "sender", "text", "time_ns",
    )  # fmt: skip

    def __init__(
        self,
        identity: EventId,
        actor: RunningActor,
        sender: str,
        content: OpenMessage | None,
        *,
        is_reply: bool = False,
        time_ns: int | None = None,
        input: Input | None = None,
    ) -> None:
        self.identity = identity
        self.actor = actor
        self.sender = sender
        self.content = content
        self.is_reply = is_reply
        self.time_ns = time_ns
        self.chain = 0
        self.input = input
        self.text = ""
