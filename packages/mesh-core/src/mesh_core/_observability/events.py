"""Events of this process, for subscribers.

The core records message events; Python records all others. A stream merges both by time. While
there is no subscriber, recording code only reads `recorder.is_on`. A subscriber that falls behind
loses the oldest events and can query how many were lost. It never blocks the code that records.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from struct import Struct

from mesh_core._configuration.config import effective
from mesh_core._observability.clock_difference import clock_difference_ns
from mesh_core._runtime.runtime import follow, runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Any, ClassVar, Self

    from mesh_core._core import Engine
    from mesh_core._observability.message_log import MessageLog
    from mesh_core._runtime.runtime import Runtime

__all__ = [
    "EVENT_KINDS",
    "MESSAGE_KINDS",
    "MESSAGE_RECORD",
    "Event",
    "EventStream",
    "recorder",
]

# The record of a message event, as in docs/protocol/events.md: nanoseconds, port, peer, call,
# bytes, rank, kind, code, endpoint, sender, span.
MESSAGE_RECORD = Struct("<QQQQQIBBHQQ")

MESSAGE_KINDS = (
    "",
    "sent",
    "received",
    "taken",
    "answered",
    "completed",
    "refused",
    "cancelled",
    "link_up",
    "link_down",
    "peer_died",
)
EVENT_KINDS = frozenset(MESSAGE_KINDS[1:]) | {
    "spawned",
    "started",
    "failed",
    "stopped",
    "supervised",
    "restarted",
    "proc_started",
    "proc_died",
    "log_line",
    "span_begin",
    "span_end",
    "metric",
    "row",
}
# Number of message events that a new process retains for an expected subscriber.
_EARLY_MAX = 1 << 14
# Interval at which an iterator polls for messages, because recorded messages wake no thread.
_LOOK_S = 0.02


class Event:
    """One event in this process.

    A field that does not apply to a kind is 0, empty or None; docs/protocol/events.md lists the
    fields of each kind.

    Attributes:
        time_ns: Time in nanoseconds since the epoch. The offset to the system clock is fixed when
            the first subscriber subscribes, so times never decrease.
        kind: The kind of event, such as `received` or `spawned`.
        actor: The port of the actor or channel that the event concerns.
        peer: The other process, packed: the host in the upper 32 bits, the slot in the lower.
        call: The reply port, which is the same in all events of one call.
        rank: The rank that was called, replied or failed.
        code: The reason for a missing value, the exit code, or the verdict.
        size: Size in bytes of the message without its shared parts.
        sender: For messages: the port of the actor that sent it; 0 outside of actors, and if the
            sending process had no subscriber.
        endpoint: For messages to actors: the endpoint that is called.
        span: For messages: the id of the span in which it was sent.
        text: A name, a line or a reason.
        value: The measured value.
        attributes: The attributes of a span or a measurement.
        subject: The object that the event describes, if there is one, such as a `LogLine`.
        KINDS: All kinds of events.
    """

    KINDS: ClassVar[frozenset[str]] = EVENT_KINDS

    __slots__ = (
        "actor",
        "attributes",
        "call",
        "code",
        "endpoint",
        "kind",
        "peer",
        "rank",
        "sender",
        "size",
        "span",
        "subject",
        "text",
        "time_ns",
        "value",
    )

    def __init__(
        self,
        time_ns: int,
        kind: str,
        *,
        actor: int = 0,
        peer: int = 0,
        call: int = 0,
        rank: int = 0,
        code: int = 0,
        size: int = 0,
        sender: int = 0,
        endpoint: str = "",
        span: int = 0,
        text: str = "",
        value: float | None = None,
        attributes: Mapping[str, Any] | None = None,
        subject: object = None,
    ) -> None:
        self.time_ns: int = time_ns
        self.kind: str = kind
        self.actor: int = actor
        self.peer: int = peer
        self.call: int = call
        self.rank: int = rank
        self.code: int = code
        self.size: int = size
        self.sender: int = sender
        self.endpoint: str = endpoint
        self.span: int = span
        self.text: str = text
        self.value: float | None = value
        self.attributes: Mapping[str, Any] | None = attributes
        self.subject: object = subject

    def __repr__(self) -> str:
        said = ((name, getattr(self, name)) for name in self.__slots__ if name != "kind")
        fields = ", ".join(f"{name}={value!r}" for name, value in said if value)
        return f"<Event {self.kind} {fields}>"


class Recorder:
    """Distributes events to all streams of this process.

    Attributes:
        is_on: Whether there is a subscriber; check this before any other work.
    """

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Remove all subscribers, which belong to the parent process of this fork."""
        self.is_on = False
        # Names by their numbers in records. The numbers, like streams, survive the end of a job.
        self.endpoint_names: tuple[str, ...] = ("",)
        self._streams: tuple[EventStream, ...] = ()
        self._logs: tuple[MessageLog, ...] = ()
        self.changed = threading.Condition(threading.Lock())
        # The engine of the current job, if any; streams survive the end of a job.
        self._engine: Engine | None = None
        self._offset_ns = 0
        #: Offset to add to the time of a message to get nanoseconds since the epoch.
        self.time_base_ns = 0

    def follow(self, current: Runtime | None) -> None:
        """Continue with another job, or with none."""
        with self.changed:
            engine = None if current is None else current.engine
            self._take_messages()
            self._turn_to(engine)
            for log in self._logs:
                log._turn_to(engine)
            if self._streams:
                self._listen()

    def record(self, kind: str, **fields: Any) -> None:
        """Record an event; check `is_on` first."""
        with self.changed:
            event = Event(time.monotonic_ns() + self._offset_ns, kind, **fields)
            for stream in self._streams:
                stream._keep(event)
            self.changed.notify_all()

    def early_events_max(self) -> int:
        """Return how many events a spawned process retains until a subscriber arrives.

        The result is 0 while messages are not recorded in this process, because no subscriber is
        expected there.
        """
        is_wanted = bool(self._logs) or any(stream._wants_messages for stream in self._streams)
        return _EARLY_MAX if is_wanted else 0

    def join(self, stream: EventStream, since_start: bool) -> None:
        """Start to deliver events to a stream, optionally including those retained until now."""
        engine = runtime().engine
        with self.changed:
            self._turn_to(engine)
            self._set_clock(engine)
            if not self._streams and not since_start:
                # Discard events that were retained for a different subscriber.
                engine.stop_events()
            self._take_messages()
            self._streams = (*self._streams, stream)
            self._listen()
            self.is_on = True

    def leave(self, stream: EventStream) -> None:
        """Stop delivery to a stream; when the last stream leaves, recording ends."""
        with self.changed:
            if stream in self._streams:
                self._take_messages()
                self._streams = tuple(one for one in self._streams if one is not stream)
                self.is_on = bool(self._streams or self._logs)
                self._listen()
            self.changed.notify_all()

    def add_log(self, log: MessageLog) -> None:
        """Start to write messages to the files of a log."""
        engine = runtime().engine
        with self.changed:
            self._turn_to(engine)
            self._set_clock(engine)
            self._logs = (*self._logs, log)
            log._turn_to(engine)
            self.is_on = True

    def remove_log(self, log: MessageLog) -> None:
        """Stop writing to a log."""
        with self.changed:
            if log in self._logs:
                log._turn_to(None)
                self._logs = tuple(one for one in self._logs if one is not log)
                self.is_on = bool(self._streams or self._logs)

    def take_messages(self) -> int:
        """Distribute the messages that the core has recorded; return the time up to which."""
        with self.changed:
            until_ns = time.monotonic_ns() + self._offset_ns
            self._take_messages()
            return until_ns

    def _set_clock(self, engine: Engine) -> None:
        """Fix the clock offset while there are listeners, so that clock steps are not visible."""
        if not self._streams and not self._logs:
            self._offset_ns = clock_difference_ns(time.time_ns, time.monotonic_ns)
            ahead_ns = clock_difference_ns(time.monotonic_ns, engine.clock_ns)
            self.time_base_ns = ahead_ns + self._offset_ns

    def _turn_to(self, engine: Engine | None) -> None:
        """Continue with the messages of an engine."""
        if engine is not None and engine is not self._engine:
            engine.register_endpoints([name.encode() for name in self.endpoint_names[1:]])
        self._engine = engine

    def _listen(self) -> None:
        """Configure whether the core records messages, and how many it retains."""
        if self._engine is None:
            return
        bounds = [stream.len_max for stream in self._streams if stream._wants_messages]
        if bounds:
            self._engine.start_events(max(bounds))
        else:
            self._engine.stop_events()

    def _take_messages(self) -> None:
        wanting = [stream for stream in self._streams if stream._wants_messages]
        if not wanting or self._engine is None:
            return
        records, dropped, names = self._engine.take_events(
            max(stream.len_max for stream in wanting), len(self.endpoint_names) - 1
        )
        if names:
            decoded = tuple(name.decode(errors="replace") for name in names)
            self.endpoint_names += decoded
        for stream in wanting:
            stream._keep_records(records, dropped)


class EventStream:
    """The events of this process for one subscriber, starting with the subscription.

    Closing the stream, or leaving it as a context manager, unsubscribes. When the job ends and the
    program starts another job, the stream continues with that job.
    """

    def __init__(self, kinds: frozenset[str] | None, len_max: int) -> None:
        self.len_max = len_max
        self.kinds = kinds
        self._wants_messages = kinds is None or not kinds.isdisjoint(MESSAGE_KINDS)
        self._dropped = 0
        # Events recorded here, raw records of messages, and decoded messages; each limited to
        # `len_max`.
        self._own: deque[Event] = deque()
        self._records: deque[memoryview] = deque()
        self._records_len = 0
        self._messages: deque[Event] = deque()
        self._is_closed = False
        self._count: memoryview | None = None

    @classmethod
    def subscribe(
        cls,
        kinds: Iterable[str] | None = None,
        len_max: int | None = None,
        *,
        since_start: bool = False,
    ) -> Self:
        """Start to record the events of this process.

        Each subscriber gets all events from now on. In a program that has not used Mesh yet, this
        call starts Mesh.

        Args:
            kinds: The kinds of events to receive; by default all.
            len_max: Maximum number of events to retain until they are read; by default the
                setting `event_ring_len_max`.
            since_start: Whether to begin with the first messages of this process. This requires
                that this process had no subscriber before, and that messages were recorded in the
                process that spawned it.

        Raises:
            ValueError: A kind is unknown, or `len_max` is less than 1.

        Example:
            >>> from mesh_core.spi import EventStream
            >>> with EventStream.subscribe({"spawned", "failed"}) as stream:
            ...     stream.poll()
            []
        """
        wanted = None if kinds is None else frozenset(kinds)
        unknown = sorted((wanted or frozenset()) - EVENT_KINDS)
        if unknown:
            known = ", ".join(sorted(EVENT_KINDS))
            raise ValueError(f"unknown kind of event {unknown[0]!r}: use some of {known}")
        bound = effective().event_ring_len_max if len_max is None else len_max
        if bound < 1:
            raise ValueError(f"len_max {bound} is less than 1: keep at least one event")
        stream = cls(wanted, bound)
        recorder.join(stream, since_start)
        return stream

    @property
    def dropped(self) -> int:
        """The number of events that were lost because they were not read in time."""
        return self._dropped

    def poll(self, max: int = 1000) -> list[Event]:
        """Return the events since the last call, oldest first, without waiting.

        Args:
            max: Maximum number of events to return.
        """
        until_ns = recorder.take_messages()
        found: list[Event] = []
        with recorder.changed:
            while len(found) < max:
                event = self._next(until_ns)
                if event is None:
                    break
                found.append(event)
        return found

    def count_into(self, count: memoryview) -> None:
        """Count events other than messages from now on, including lost ones.

        Another process that has mapped the memory can then detect new events.

        Args:
            count: A writable view of one unsigned 64-bit number, which is incremented for each
                event.
        """
        with recorder.changed:
            self._count = count

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """Wait for events and yield them one at a time.

        Args:
            timeout: End the iteration after this many seconds without an event. By default it
                continues until the stream is closed.
        """
        while not self._is_closed:
            found = self._wait(timeout)
            if not found:
                return
            yield from found

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def close(self) -> None:
        """Unsubscribe and discard all events that were not read."""
        self._is_closed = True
        recorder.leave(self)
        with recorder.changed:
            self._own.clear()
            self._records.clear()
            self._messages.clear()
            self._records_len = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _wait(self, timeout: float | None) -> list[Event]:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            found = self.poll()
            left = None if until is None else until - time.monotonic()
            if found or self._is_closed or (left is not None and left <= 0):
                return found
            # Recorded messages wake no thread, which keeps recording cheap.
            wait_s = _LOOK_S if self._wants_messages else left
            with recorder.changed:
                if not self._own and not self._is_closed:
                    recorder.changed.wait(wait_s if left is None else min(wait_s or left, left))

    # The caller of the following methods holds the lock of the recorder.

    def _keep(self, event: Event) -> None:
        if self.kinds is None or event.kind in self.kinds:
            if len(self._own) >= self.len_max:
                self._own.popleft()
                self._dropped += 1
            self._own.append(event)
            if self._count is not None:
                self._count[0] += 1

    def _keep_records(self, records: bytes, dropped: int) -> None:
        self._dropped += dropped
        if records:
            self._records.append(memoryview(records))
            self._records_len += len(records)
        excess = self._records_len - self.len_max * MESSAGE_RECORD.size
        while excess > 0:
            first = self._records.popleft()
            lost = min(excess, len(first))
            if lost < len(first):
                self._records.appendleft(first[lost:])
            self._dropped += lost // MESSAGE_RECORD.size
            self._records_len -= lost
            excess -= lost

    def _next(self, until_ns: int) -> Event | None:
        while not self._messages and self._records:
            self._read(self._records.popleft())
        own = self._own[0] if self._own else None
        message = self._messages[0] if self._messages else None
        if message is not None and (own is None or message.time_ns <= own.time_ns):
            return self._messages.popleft() if message.time_ns <= until_ns else None
        if own is not None and own.time_ns <= until_ns:
            return self._own.popleft()
        return None

    def _read(self, records: memoryview) -> None:
        """Decode records into events, at most 4,096 at a time."""
        piece = 4096 * MESSAGE_RECORD.size
        if len(records) > piece:
            self._records.appendleft(records[piece:])
            records = records[:piece]
        self._records_len -= len(records)
        base, names = recorder.time_base_ns, recorder.endpoint_names
        for record in MESSAGE_RECORD.iter_unpack(records):
            at, port, peer, call, size, rank, kind, code, endpoint, sender, span = record
            name = MESSAGE_KINDS[kind]
            if self.kinds is None or name in self.kinds:
                event = Event(
                    at + base,
                    name,
                    actor=port,
                    peer=peer,
                    call=call,
                    rank=rank,
                    code=code,
                    size=size,
                    sender=sender,
                    endpoint=names[endpoint],
                    span=span,
                )
                self._messages.append(event)


recorder = Recorder()
follow(recorder.follow)
os.register_at_fork(after_in_child=recorder.start_anew)
