"""Channels: a port to send on, which travels in messages, and the receiver, which stays.

A receiver hears of the death of every process that holds a port of it, and of every message with
such a port that was dropped: `recv` then raises `ProcDied` once, after all that the process had
sent. So none waits for a sender that is gone.
"""

from __future__ import annotations

import time
from collections import deque
from threading import Condition, RLock
from typing import Any, Generic, TypeVar, overload
from weakref import WeakSet, ref

from mesh_core._actors.context import serving
from mesh_core._calls.event_loop import is_on_event_loop, waker_of
from mesh_core._calls.future import _ERROR, _PENDING, _VALUE, Future
from mesh_core._calls.port_holders import DEATH_META, arrived, holders
from mesh_core._calls.port_transit import labelled, note_ports, recall_ports, serial_of
from mesh_core._configuration.config import effective
from mesh_core._core import Full, Message, PortClosed, Targets
from mesh_core._errors import ChannelClosed, MailboxFull, NoReply
from mesh_core._meshes.handle_job import runtime_of_job
from mesh_core._observability.events import recorder
from mesh_core._observability.trace_context import origin
from mesh_core._program.runtime import is_running, runtime, value_of
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

    from mesh_core._program.runtime import Runtime

__all__ = ["AnswerPort", "Channel", "Port", "PortReceiver", "RankedPortReceiver"]

R = TypeVar("R")
_VALUE_META = b""
_EXCEPTION_META = b"E"


class Port(Generic[R]):
    """Where values can be sent to; picklable, usable from any process and thread."""

    def __init__(self, proc: int, port: int, once: bool, current: Runtime | None = None) -> None:
        self._runtime = runtime() if current is None else current
        self._proc = proc
        self._port = port
        self._once = once
        self._is_used = False
        self._is_remote = False

    def send(self, value: R) -> None:
        """Sends a value; it arrives after all that this process sent here before.

        Raises:
            RuntimeError: The port is for one value, and has sent it.
            TypeError: The value cannot be pickled.
            MailboxFull: On an event loop, when the receiver has too many of our messages.
        """
        body, buffers = encode_value(value, effective().segment_threshold_bytes)
        self._post(_VALUE_META, body, buffers)

    def exception(self, error: BaseException) -> None:
        """Sends an exception, which `recv` raises.

        Raises:
            RuntimeError: The port is for one value, and has sent it.
        """
        self._post(_EXCEPTION_META, encode_exception(error), [])

    def _post(self, meta: bytes, body: bytes, buffers: list[memoryview]) -> None:
        if self._once and self._is_used:
            raise RuntimeError("the port is for one value, which has been sent: open another one")
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
                not is_on_event_loop(),
                origin() if recorder.is_on else None,
            )
        except BaseException as error:
            recall_ports(body, targets)
            if isinstance(error, Full):
                raise MailboxFull(config.mailbox_len_max, "channel") from None
            raise

    def _require_local(self) -> int:
        if self._proc != runtime().me:
            raise ValueError("answers can only go to a port of this process: open a channel here")
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
    """Unpickle a port; outside its own process, its receiver is notified of the holder.

    Raises:
        ForeignHandle: This process belongs to another job than the port.
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


class AnswerPort(Port[R]):
    """The port that an endpoint with an explicit port answers on, now or later.

    Letting go of it unanswered tells the caller so; so does the death of the process that it was
    handed on to.
    """

    def __init__(self, message: Message, *, is_handed_on: bool = False) -> None:
        super().__init__(message.from_proc, message.from_port, once=False)
        self._message = message
        self._is_answered = not message.from_port
        # Whether the process that was called waits for a word from here.
        self._is_handed_on = is_handed_on

    def send(self, value: R) -> None:
        """Answers with a value. A call takes the first answer; a channel takes all."""
        body, buffers = encode_value(value, effective().segment_threshold_bytes)
        self._answer(0, body, buffers)

    def exception(self, error: BaseException) -> None:
        """Answers with an exception, which the caller's `get` raises."""
        self._answer(RAISED, encode_exception(error), [])

    def _answer(self, code: int, body: bytes, buffers: list[memoryview]) -> None:
        self._is_answered = True
        self._runtime.engine.answer(self._message, code, body, buffers)
        if self._is_handed_on:
            self._is_handed_on = False
            address = self._message.address()
            self._runtime.tell_agent(address[0], "answer_port_released", address)

    def __reduce__(self) -> Any:
        # Whoever gets the copy answers.
        self._is_answered = True
        address = self._message.address()
        label = labelled(address)
        return _unpickle_answer_port, (self._runtime.identity.job, label, *address)

    def __del__(self) -> None:
        if not getattr(self, "_is_answered", True) and not self._runtime.is_over:
            self._answer(NO_REPLY, b"", [])


def _unpickle_answer_port(job: bytes, label: bytes, *address: int) -> AnswerPort[Any]:
    """Unpickle a port; the process that was called is notified of the new holder.

    Raises:
        ForeignHandle: This process belongs to another job than the port.
    """
    current = runtime_of_job(job, "port")
    is_handed_on = address[0] != current.me
    serial = serial_of(label)
    if is_handed_on:
        current.tell_agent(address[0], "answer_port_held", address, serial)
    else:
        arrived(serial, current.me)
    return AnswerPort(Message.at(*address), is_handed_on=is_handed_on)


class PortReceiver(Generic[R]):
    """The end of a channel where values come out, in the order of each sender."""

    def __init__(self, port: int, once: bool) -> None:
        self._engine = runtime().engine
        self._port = port
        self._once = once
        self._is_asked = False
        # Futures that have no value yet, in the order of `recv`. Values are taken out of the
        # mailbox and handed to them in one step, under the lock.
        self._waiting: deque[RecvFuture[Any]] = deque()
        self._turn = Condition(RLock())
        # One thread at a time sleeps on the port; the others sleep until it has handed out values.
        self._has_sleeper = False
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

    def recv(self) -> Future[R]:
        """Gives the next value, as a future.

        The future raises an exception that was sent; `ProcDied` when a process that held a port has
        died; `ChannelClosed` after `close`.

        Raises:
            ValueError: The channel is for one value, and it has been asked for.
        """
        if self._once and self._is_asked:
            raise ValueError("the channel is for one value, which was asked for: open another one")
        self._is_asked = True
        future: RecvFuture[R] = RecvFuture(self)
        with self._turn:
            self._waiting.append(future)
        return future

    def close(self) -> None:
        """Takes no more values: what was not received yet and what still comes is dropped."""
        self._engine.close_mailbox(self._port, STOPPED, b"")
        holders.pop(self._port, None)

    def _value_of(self, message: Message) -> Any:
        return value_of(message)

    def _hand_out(self) -> None:
        """Gives what has come in to who waits, without waiting."""
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
                self._waiting.popleft()._take(messages[0])

    def _wait(self, future: RecvFuture[Any], until: float | None) -> bool:
        """Blocks until a future is settled; False when the time is over."""
        while True:
            with self._turn:
                # Others may hand out, between here and the sleep, the very value that would end it.
                if not self._has_sleeper:
                    self._engine.expect(self._port)
                self._hand_out()
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
                    self._hand_out()
                    self._turn.notify_all()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has values handed out by an event loop from now on."""
        if loop in self._loops:
            return
        self._loops.add(loop)
        waker, port, weakly = waker_of(loop, self._engine), self._port, ref(self)

        def look() -> None:
            receiver = weakly()
            if receiver is None:
                waker.forget(port)
            else:
                receiver._hand_out()

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
        """Gives the same channel, whose values come with the rank of who sent them."""
        return RankedPortReceiver(self._port, self._once, self)

    def __reduce__(self) -> Any:
        raise TypeError("a receiver belongs to its process: send the port, and receive here")

    def __del__(self) -> None:
        holders.pop(self._port, None)
        self._engine.drop_port(self._port)


class RankedPortReceiver(PortReceiver[tuple[int, R]], Generic[R]):
    """As `PortReceiver`; values are pairs of rank and value."""

    def __init__(self, port: int, once: bool, plain: PortReceiver[R] | None = None) -> None:
        super().__init__(port, once)
        # The receiver that this is another view of: it owns the port.
        self._plain = plain
        if plain is not None:
            self._waiting, self._turn = plain._waiting, plain._turn

    def _value_of(self, message: Message) -> Any:
        return message.rank, value_of(message)

    def __del__(self) -> None:
        if self._plain is None:
            super().__del__()


class RecvFuture(Future[R]):
    """One value of a channel. Futures of one channel are served in the order of `recv`."""

    __slots__ = ("_receiver",)

    def __init__(self, receiver: PortReceiver[R]) -> None:
        self._start()
        self._receiver = receiver

    def _wait(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        if not self._receiver._wait(self, until):
            raise TimeoutError(f"nothing was received in {timeout} s")

    def _poll(self) -> None:
        self._receiver._hand_out()

    def _take(self, message: Message) -> None:
        try:
            kind, meta = message.kind, message.meta
            if meta == _EXCEPTION_META or (kind == FAULT and message.code == RAISED):
                self._settle(_ERROR, decode_exception(message.body))
            elif kind == FAULT and message.code == NO_REPLY:
                self._settle(_ERROR, NoReply("the endpoint let go of its port without answering"))
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
    """Makes channels; the type parameter says what travels on one."""

    @overload
    @classmethod
    def open(cls, once: Literal[False] = False) -> tuple[Port[R], PortReceiver[R]]: ...
    @overload
    @classmethod
    def open(cls, once: Literal[True]) -> tuple[Port[R], PortReceiver[R]]: ...
    @classmethod
    def open(cls, once: bool = False) -> tuple[Port[R], PortReceiver[R]]:
        """Opens a channel whose receiver is in this process.

        Args:
            once: One value only.
        """
        number = _open_port()
        return Port(runtime().me, number, once), PortReceiver(number, once)

    @classmethod
    def open_ranked(cls, once: bool = False) -> tuple[Port[R], RankedPortReceiver[R]]:
        """As `open`; values are received together with the rank of who sent them.

        Args:
            once: One value only.
        """
        number = _open_port()
        ranked: RankedPortReceiver[R] = RankedPortReceiver(number, once)
        return Port(runtime().me, number, once), ranked


def _open_port() -> int:
    engine = runtime().engine
    number: int = engine.new_port()
    engine.open_mailbox(number, effective().mailbox_len_max)
    holders[number] = {}
    return number
