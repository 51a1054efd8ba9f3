"""Channels: a port that can be sent in messages, and a receiver that stays in its process.

A receiver is notified of the death of every process that holds one of its ports, and of every
dropped message that contained such a port. `recv` then raises `ProcDied` once, after all values
that the process had sent. So no receiver waits for a sender that no longer exists.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet, ref

from mesh_core._calls import port_holders
from mesh_core._calls.event_loop import is_on_event_loop, waker_of
from mesh_core._calls.future import _ERROR, _PENDING, _VALUE, Future
from mesh_core._calls.port_holders import DEATH_META, arrived
from mesh_core._calls.port_transit import labelled, note_ports, recall_ports, serial_of
from mesh_core._configuration.config import effective
from mesh_core._core import Full, Message, PortClosed, Targets
from mesh_core._errors import ChannelClosed, MailboxFull, NoReply
from mesh_core._observability.events import recorder
from mesh_core._observability.trace_context import origin
from mesh_core._runtime.handle_job import runtime_of_job
from mesh_core._runtime.runtime import is_running, runtime, value_of
from mesh_core._runtime.serving import serving
from mesh_core._serialization.pickler import encode_value
from mesh_core._serialization.remote_error import decode_exception, encode_exception
from mesh_core._serialization.wire import (
    FAULT,
    NO_REPLY,
    POST,
    PROC_DIED,
    RAISED,
    STOPPED,
    proc_name,
)
from mesh_core._supervision.failure import observed_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterator
    from typing import Literal

    from mesh_core._recording.actor_recording import ActorRecording
    from mesh_core._runtime.runtime import Runtime

__all__ = ["Channel", "Port", "PortReceiver", "RankedPortReceiver", "ReplyPort"]

R = TypeVar("R")
_VALUE_META = b""
_EXCEPTION_META = b"E"


class Port(Generic[R]):
    """The sending end of a channel; picklable, and usable in any process and on any thread."""

    def __init__(self, proc: int, port: int, once: bool, current: Runtime | None = None) -> None:
        self._runtime = runtime() if current is None else current
        self._proc = proc
        self._port = port
        self._once = once
        self._is_used = False
        self._is_remote = False

    def send(self, value: R) -> None:
        """Send a value; it arrives after everything that this process sent on the channel before.

        Raises:
            RuntimeError: The port accepts one value, which has already been sent.
            TypeError: The value cannot be pickled.
            MailboxFull: On an event loop, if the mailbox of the receiver has no capacity for the
                message.
        """
        body, buffers = encode_value(value, effective().segment_threshold_bytes)
        self._post(_VALUE_META, body, buffers)

    def exception(self, error: BaseException) -> None:
        """Send an exception, which `recv` raises.

        Raises:
            RuntimeError: The port accepts one value, which has already been sent.
        """
        self._post(_EXCEPTION_META, encode_exception(error), [])

    def _post(self, meta: bytes, body: bytes, buffers: list[memoryview]) -> None:
        if self._once and self._is_used:
            raise RuntimeError("the port takes one value, which was already sent: open another")
        if self._runtime.is_over:
            raise ChannelClosed("the job of this channel has ended: open another one")
        self._is_used = True
        current = serving()
        rank = 0 if current is None else current.point.rank
        config = effective()
        targets = Targets([(self._proc, rank)])
        note_ports(body, targets)
        try:
            self._runtime.engine.send(
                POST,
                targets,
                self._port,
                meta,
                body,
                buffers,
                config.mailbox_len_max,
                0,
                is_on_event_loop,
                origin() if recorder.is_on else None,
            )
        except BaseException as error:
            recall_ports(body, targets)
            if isinstance(error, Full):
                raise MailboxFull(config.mailbox_len_max, "channel") from None
            raise

    def _require_local(self) -> int:
        if self._proc != runtime().me:
            raise ValueError("replies can only go to a port of this process: open a channel here")
        return self._port

    def __reduce__(self) -> Any:
        job = self._runtime.identity.job
        label = labelled((self._proc, self._port))
        return _unpickle_port, (job, self._proc, self._port, self._once, label)

    def __repr__(self) -> str:
        return f"<Port {proc_name(self._proc)}:{self._port}>"

    def __del__(self) -> None:
        if getattr(self, "_is_remote", False) and is_running() and runtime() is self._runtime:
            self._runtime.tell_agent(self._proc, "port_released", self._port)


def _unpickle_port(job: bytes, proc: int, port: int, once: bool, label: bytes) -> Port[Any]:
    """Unpickle a port; outside its own process, its receiver is notified of the new holder.

    Raises:
        ForeignHandle: This process belongs to a different job than the port.
    """
    current = runtime_of_job(job, "port")
    made: Port[Any] = Port(proc, port, once, current)
    serial = serial_of(label)
    if proc != current.me:
        current.tell_agent(proc, "port_held", port, serial)
        made._is_remote = True
    else:
        arrived(serial, proc)
    return made


class ReplyPort(Port[R]):
    """The response port of an endpoint that replies explicitly, during the call or later.

    If the port is dropped without a reply, or if the process that it was sent to dies, the caller
    gets an error.
    """

    def __init__(self, message: Message, *, is_handed_on: bool = False) -> None:
        super().__init__(message.from_proc, message.from_port, once=False)
        self._message = message
        self._is_answered = not message.from_port
        # Whether this process must notify the called process of the reply.
        self._is_handed_on = is_handed_on

    def send(self, value: R) -> None:
        """Reply with a value. A call uses the first reply; a channel receives all of them."""
        body, buffers = encode_value(value, effective().segment_threshold_bytes)
        self._answer(0, body, buffers)

    def exception(self, error: BaseException) -> None:
        """Reply with an exception, which `get` raises at the caller."""
        self._answer(RAISED, encode_exception(error), [])

    def _answer(self, code: int, body: bytes, buffers: list[memoryview]) -> None:
        self._is_answered = True
        self._runtime.engine.reply(self._message, code, body, buffers)
        if self._is_handed_on:
            self._is_handed_on = False
            address = self._message.address()
            self._runtime.tell_agent(address[0], "answer_port_released", address)

    def __reduce__(self) -> Any:
        # Only the copy in the message replies.
        self._is_answered = True
        address = self._message.address()
        label = labelled(address)
        return _unpickle_reply_port, (self._runtime.identity.job, label, *address)

    def __del__(self) -> None:
        if not getattr(self, "_is_answered", True) and not self._runtime.is_over:
            self._answer(NO_REPLY, b"", [])


def _unpickle_reply_port(job: bytes, label: bytes, *address: int) -> ReplyPort[Any]:
    """Unpickle a response port and notify the called process of the new holder.

    Raises:
        ForeignHandle: This process belongs to a different job than the port.
    """
    current = runtime_of_job(job, "port")
    is_handed_on = address[0] != current.me
    serial = serial_of(label)
    if is_handed_on:
        current.tell_agent(address[0], "answer_port_held", address, serial)
    else:
        arrived(serial, current.me)
    return ReplyPort(Message.at(*address), is_handed_on=is_handed_on)


class PortReceiver(Generic[R]):
    """The receiving end of a channel; preserves the order of the values of each sender."""

    def __init__(self, port: int, once: bool) -> None:
        self._engine = runtime().engine
        self._port = port
        self._once = once
        self._is_asked = False
        # Futures without a value, in the order of the calls of `recv`. Values are taken from the
        # mailbox and assigned to them in one step, under the lock.
        self._waiting: deque[RecvFuture[Any]] = deque()
        self._turn = threading.Condition(threading.RLock())
        # One thread at a time waits on the port. The others wait until it has assigned values.
        self._has_sleeper = False
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        # What an actor receives, if it is recorded.
        self._recording: ActorRecording | None = None
        current = serving()
        if current is not None:
            self._number = current.cell.channel_number(port)
            self._recording = current.cell.recording

    def recv(self) -> Future[R]:
        """Return a future of the next value.

        The future raises the exception if the sender sent one, `ProcDied` if a process that held a
        port has died, and `ChannelClosed` after `close`.

        Raises:
            ValueError: The channel carries one value, which has already been requested.
        """
        if self._once and self._is_asked:
            raise ValueError("the channel takes one value, already requested: open another one")
        self._is_asked = True
        future: RecvFuture[R] = RecvFuture(self)
        with self._turn:
            self._waiting.append(future)
        return future

    def close(self) -> None:
        """Close the channel: drop queued values and all values that arrive later."""
        self._engine.close_mailbox(self._port, STOPPED, b"")
        port_holders.holders.pop(self._port, None)

    def _value_of(self, message: Message) -> Any:
        return value_of(message)

    def _deliver(self) -> None:
        """Assign the values in the mailbox to waiting futures, without blocking."""
        engine = self._engine
        with self._turn:
            while self._waiting:
                try:
                    messages = engine.receive_nowait(self._port, 1)
                except PortClosed:
                    while self._waiting:
                        self._waiting.popleft()._close()
                    return
                if not messages:
                    return
                message = messages[0]
                if self._recording is not None:
                    message = self._recording.received(self._number, message)
                self._waiting.popleft()._take(message)

    def _wait(self, future: RecvFuture[Any], until: float | None) -> bool:
        """Block until a future is settled; return False if the deadline passes first."""
        while True:
            with self._turn:
                # Before this thread waits, another thread may assign the value that would wake it.
                if not self._has_sleeper:
                    self._engine.arm_wait(self._port)
                self._deliver()
                if future._state != _PENDING:
                    return True
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if self._has_sleeper:
                    self._turn.wait(left)
                    continue
                self._has_sleeper = True
            try:
                self._engine.wait_ready(self._port, left)
            finally:
                with self._turn:
                    self._has_sleeper = False
                    self._deliver()
                    self._turn.notify_all()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let an event loop assign values from now on."""
        if loop in self._loops:
            return
        self._loops.add(loop)
        waker, port, weakly = waker_of(loop, self._engine), self._port, ref(self)

        def look() -> None:
            receiver = weakly()
            if receiver is None:
                waker.forget(port)
            else:
                receiver._deliver()

        waker.watch_always(port, look)

    def __iter__(self) -> Iterator[R]:
        while True:
            try:
                yield self.recv().get()
            except ChannelClosed:
                return

    async def __aiter__(self) -> AsyncIterator[R]:
        while True:
            try:
                yield await self.recv()
            except ChannelClosed:
                return

    def ranked(self) -> RankedPortReceiver[R]:
        """Return a view of this channel that yields each value with the rank of its sender."""
        return RankedPortReceiver(self._port, self._once, self)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a receiver cannot be sent to another process: send the port, and receive here"
        )

    def __del__(self) -> None:
        port_holders.holders.pop(self._port, None)
        self._engine.drop_port(self._port)


class RankedPortReceiver(PortReceiver[tuple[int, R]], Generic[R]):
    """Like `PortReceiver`, but the values are pairs of rank and value."""

    def __init__(self, port: int, once: bool, plain: PortReceiver[R] | None = None) -> None:
        super().__init__(port, once)
        # The receiver that this object is a view of; it owns the port.
        self._plain = plain
        if plain is not None:
            self._waiting, self._turn = plain._waiting, plain._turn

    def _value_of(self, message: Message) -> Any:
        return message.rank, value_of(message)

    def __del__(self) -> None:
        if self._plain is None:
            super().__del__()


class RecvFuture(Future[R]):
    """One value of a channel. Futures of a channel get values in the order of `recv`."""

    __slots__ = ("_receiver",)

    def __init__(self, receiver: PortReceiver[R]) -> None:
        self._start()
        self._receiver = receiver

    def _wait(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        if not self._receiver._wait(self, until):
            raise TimeoutError(f"nothing was received in {timeout} s")

    def _poll(self) -> None:
        self._receiver._deliver()

    def _take(self, message: Message) -> None:
        try:
            kind, meta = message.kind, message.meta
            if meta == _EXCEPTION_META or (kind == FAULT and message.code == RAISED):
                self._settle(_ERROR, decode_exception(message.body))
            elif kind == FAULT and message.code == NO_REPLY:
                self._settle(_ERROR, NoReply("the endpoint dropped its port without replying"))
            elif meta == DEATH_META or kind == FAULT:
                code = message.code if kind == FAULT else PROC_DIED
                self._settle(_ERROR, observed_error(message.body, code))
            else:
                self._settle(_VALUE, self._receiver._value_of(message))
        except BaseException as error:
            self._settle(_ERROR, error)

    def _close(self) -> None:
        self._settle(_ERROR, ChannelClosed("channel is closed: nothing more will be received"))

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._receiver._watch(loop)

    def _give_up(self) -> bool:
        with self._receiver._turn:
            if self not in self._receiver._waiting:
                return False
            self._receiver._waiting.remove(self)
            return True


class Channel(Generic[R]):
    """Factory for channels; the type parameter is the type of the values."""

    @overload
    @classmethod
    def open(cls, once: Literal[False] = False) -> tuple[Port[R], PortReceiver[R]]: ...
    @overload
    @classmethod
    def open(cls, once: Literal[True]) -> tuple[Port[R], PortReceiver[R]]: ...
    @classmethod
    def open(cls, once: bool = False) -> tuple[Port[R], PortReceiver[R]]:
        """Open a channel whose receiver is in this process.

        Args:
            once: Whether the channel carries a single value.
        """
        number = _open_port()
        return Port(runtime().me, number, once), PortReceiver(number, once)

    @classmethod
    def open_ranked(cls, once: bool = False) -> tuple[Port[R], RankedPortReceiver[R]]:
        """Open a channel that yields each value with the rank of its sender; see `open`.

        Args:
            once: Whether the channel carries a single value.
        """
        number = _open_port()
        ranked: RankedPortReceiver[R] = RankedPortReceiver(number, once)
        return Port(runtime().me, number, once), ranked


def _open_port() -> int:
    engine = runtime().engine
    number: int = engine.new_port()
    engine.open_mailbox(number, effective().mailbox_len_max)
    port_holders.holders[number] = {}
    return number
