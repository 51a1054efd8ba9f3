"""The recorded messages of the actors that run together, with their senders and times.

A recorded message either comes from another actor of the run, which sends it again, or from
outside. Messages from outside are the inputs of all schedules.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from typing import Any

from mesh_core._replay.errors import ReplayError
from mesh_core._replay.record import Record
from mesh_core._serialization.wire import proc_name, proc_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mesh_core._cases.case import Case, Entry, RecordedActor
    from mesh_core._runtime.open_message import OpenMessage

__all__ = ["Input", "Inputs", "Link", "RecordedCall", "ScheduleActor"]

# A link: sending process, receiving mesh, endpoint, and rank.
Link = tuple[int, str, str, int]


class RecordedCall:
    """A call of an actor in the recorded run.

    Attributes:
        endpoint: The endpoint.
        mesh: The mesh of the receivers.
        ranks: The ranks of the receivers; the first 64 of many.
        arguments: The encoded arguments; None if they were too long to be recorded.
        replies: For each rank, when the actor took the reply and the reply itself.
    """

    def __init__(self, entry: Entry) -> None:
        fields = entry.fields
        self.endpoint: str = fields["endpoint"]
        self.mesh: str = fields["mesh"]
        self.ranks: list[int] = fields["ranks"]
        payloads = entry.payloads
        kept = payloads[0] if payloads else None
        self.arguments: bytes | None = kept if isinstance(kept, bytes) else None
        self.replies: dict[int, tuple[int, Entry]] = {}


class ScheduleActor:
    """A recorded actor that takes part in schedules.

    Attributes:
        name: Its mesh and rank, with its address if another actor has the same.
        record: Its record.
        proc: The id of its process.
        port: Its port.
        created_ns: When it was created.
        calls: The calls that it made, in order.
        known_errors: The endpoints and types of the exceptions that it raised without failing.
    """

    def __init__(self, actor: RecordedActor) -> None:
        self.name: str = f"{actor.mesh}[{actor.rank}]"
        self.record: Record = Record(actor)
        self.proc: int = proc_of(actor.proc)
        port = self.record.begin_fields.get("port")
        if port is None:
            raise ReplayError(
                f"the case does not contain the address of {self.name}: it was saved by an earlier "
                "version, whose cases can only be replayed one actor at a time"
            )
        self.port: int = int(port, 16)
        self.created_ns: int = actor.entries[0].time_ns
        by_number: dict[int, RecordedCall] = {}
        for entry in actor.entries:
            if entry.kind == "call":
                by_number[entry.fields["k"]] = RecordedCall(entry)
            elif entry.kind == "reply" and entry.fields["k"] in by_number:
                replies = by_number[entry.fields["k"]].replies
                replies[entry.fields["rank"]] = (entry.time_ns, entry)
        self.calls: list[RecordedCall] = list(by_number.values())
        names = {one.fields["n"]: one.fields["endpoint"] for one in self.record.messages}
        self.known_errors: set[tuple[str, str]] = {
            (names.get(one.fields["n"], "__init__"), one.fields["error"].partition(":")[0])
            for one in actor.entries
            if one.kind == "outcome"
            and one.fields["status"] == "raised"
            and one.fields["n"] != self.record.failing
        }


class Input:
    """A message from outside.

    Attributes:
        actor: The receiver.
        sender: The sending process.
        message: The message.
        time_ns: When the actor started it in the recorded run.
        earlier: The number of replies to senders outside that may have been waited for before this
            message was sent.
        ended: The position of its own reply among those replies; None without one.
        index: Its position among the inputs, in the recorded order.
    """

    def __init__(self, actor: ScheduleActor, entry: Entry) -> None:
        self.actor: ScheduleActor = actor
        self.sender: int = proc_of(entry.fields["from"])
        self.message: OpenMessage = actor.record.message(entry)
        self.time_ns: int = entry.time_ns
        self.number: int = entry.fields["n"]
        self.earlier: int = 0
        self.ended: int | None = None
        self.index: int = 0


class Inputs:
    """The actors of a case that run together, and the messages that they get from outside.

    Actors whose record is not complete do not run: their replies are taken from the record.

    Args:
        case: The case.
        may_reorder: Whether messages from outside to different actors may be sent in any order,
            also if the first was answered before the second was started.

    Attributes:
        actors: The actors, in the order of their creation.
        all: The messages from outside, in the recorded order.
        internal: For each link, when its messages were started, and their numbers.
        left_out: The actors that do not run, with the reason.
        event_count: The number of recorded messages and replies.

    Raises:
        ReplayError: No actor of the case can run.
    """

    def __init__(self, case: Case, *, may_reorder: bool = False) -> None:
        self.actors: list[ScheduleActor] = []
        self.left_out: dict[str, str] = {}
        for recorded in case.actors:
            try:
                self.actors.append(ScheduleActor(recorded))
            except ReplayError as error:
                self.left_out[f"{recorded.mesh}[{recorded.rank}]"] = str(error)
        if not self.actors:
            raise ReplayError(
                "no actor of the case can run: " + "; ".join(dict.fromkeys(self.left_out.values()))
            )
        self.actors.sort(key=lambda one: one.created_ns)
        names = Counter(one.name for one in self.actors)
        for actor in self.actors:
            if names[actor.name] > 1:
                # Meshes can have equal names.
                actor.name += f" at {proc_name(actor.proc)}:{actor.port:x}"
        self.event_count: int = sum(
            len(one.record.messages) + sum(len(call.replies) for call in one.calls)
            for one in self.actors
        )
        sent = Counter(self._links())
        self.internal: dict[Link, deque[tuple[int, int]]] = defaultdict(deque)
        self.all: list[Input] = []
        for actor in self.actors:
            for entry in actor.record.messages:
                fields = entry.fields
                sender = proc_of(fields["from"])
                link = (sender, actor.record.actor.mesh, fields["endpoint"], fields["rank"])
                if sent[link] > 0:
                    sent[link] -= 1
                    self.internal[link].append((entry.time_ns, fields["n"]))
                else:
                    self.all.append(Input(actor, entry))
        self.all.sort(key=lambda one: one.time_ns)
        for index, one in enumerate(self.all):
            one.index = index
        if not may_reorder:
            self._order_by_replies()

    def _links(self) -> Iterable[Link]:
        """Yield the link of each message that an actor of the run sent."""
        for actor in self.actors:
            for call in actor.calls:
                for rank in call.ranks:
                    yield actor.proc, call.mesh, call.endpoint, rank

    def _order_by_replies(self) -> None:
        """Record which replies may have been waited for before each message was sent.

        Senders outside may wait for each other, so all of them count as one.
        """
        ends = []
        for one in self.all:
            outcome = one.actor.record.outcome(one.number)
            if one.message.from_port and outcome is not None:
                ends.append((outcome.time_ns, one))
        ends.sort(key=lambda end: end[0])
        for position, (_, one) in enumerate(ends):
            one.ended = position
        times = [time_ns for time_ns, _ in ends]
        for one in self.all:
            one.earlier = bisect_left(times, one.time_ns)
        # A call of several actors sends all its messages at once.
        for messages in self._calls_from_outside():
            earlier = min(one.earlier for one in messages)
            for one in messages:
                one.earlier = earlier

    def _calls_from_outside(self) -> Iterable[list[Input]]:
        """Yield the messages of each call that senders outside made.

        The messages of a call are equal but for their ranks. If a call was repeated, each actor got
        the messages in the order of the calls.
        """
        counts: Counter[tuple[Any, ...]] = Counter()
        calls: dict[tuple[Any, ...], list[Input]] = defaultdict(list)
        for one in self.all:
            message = one.message
            call = (one.sender, one.actor.record.actor.mesh, message.meta, bytes(message.body))
            receiver = (*call, one.actor.name, message.rank)
            calls[*call, counts[receiver]].append(one)
            counts[receiver] += 1
        return calls.values()
