"""Copies by devices: one thread starts their pieces and polls for completion."""

from __future__ import annotations

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from mesh_rdma._cuda.driver import CudaDriver, needed_driver
from mesh_rdma._errors import RDMACancelled

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Copier",
    "Copy",
    "CopyAddresses",
    "StreamEvent",
    "copy_now",
    "record_stream_event",
    "wait_for_stream_event",
]

#: What is handed over at a time between devices: long enough that the call is not seen,
_DEVICE_PIECE_LEN = 64 << 20
#: and where the processor's memory is on one side, which is slower.
_HOST_PIECE_LEN = 8 << 20
#: How many pieces are under way at a time: who aborts a copy waits for no more than those.
_PIECES_MAX = 4
#: How many copies take turns; each has announced itself at an owner.
_COPIES_MAX = 8


class CopyAddresses(NamedTuple):
    """The device and the addresses of a copy, once it is prepared.

    Attributes:
        device: The number of the device that copies.
        to: The address of the destination.
        from_: The address of the source.
    """

    device: int
    to: int
    from_: int


class StreamEvent(NamedTuple):
    """An event on a stream of the program, which a copy waits for.

    Attributes:
        device: The number of the device of the stream.
        event: The CUDA event.
    """

    device: int
    event: int


class Copy(ABC):
    """One copy; those that derive say what it needs, and hear how it ends."""

    def __init__(self, nbytes: int, is_between_devices: bool, after: StreamEvent | None) -> None:
        self.nbytes = nbytes
        self.after = after
        self.piece_len = _DEVICE_PIECE_LEN if is_between_devices else _HOST_PIECE_LEN
        self.place: CopyAddresses | None = None
        self.begun = 0
        self.under_way = 0
        self.is_aborted = False
        self.error: Exception | None = None
        self.over = threading.Event()

    @abstractmethod
    def prepare(self) -> CopyAddresses:
        """Makes ready all that it needs; nothing is copied before.

        Raises:
            RDMAError: It cannot be begun.
        """

    @abstractmethod
    def check(self) -> None:
        """Looks whether to go on: before each piece, and after the last.

        Raises:
            RDMAError: It may not.
        """

    @abstractmethod
    def finish(self, error: Exception | None) -> None:
        """Gives back what it had: no byte of it is written any more."""

    @property
    def is_all_begun(self) -> bool:
        """Whether no more pieces of it are handed over."""
        return self.is_aborted or self.error is not None or self.begun == self.nbytes


class Copier:
    """Copies of one channel, in turns, by streams of their own.

    Args:
        driver: What they are handed to.
        idle: Called when there is nothing to do; gives the seconds until it is to be called again.
    """

    def __init__(self, driver: CudaDriver, idle: Callable[[], float | None]) -> None:
        self._driver = driver
        self._idle = idle
        self._changed = threading.Condition()
        self._waiting: deque[Copy] = deque()
        self._active: deque[Copy] = deque()
        self._flight: deque[tuple[int, int, Copy]] = deque()
        self._streams: dict[int, int] = {}
        self._events: dict[int, list[int]] = {}
        self._is_closing = False
        self._is_to_look = False
        self._thread: threading.Thread | None = None

    def start(self, copy: Copy) -> None:
        """Queue a copy."""
        with self._changed:
            if self._is_closing:
                raise RDMACancelled("cuda: the channel was closed")
            self._waiting.append(copy)
            self._wake()

    def look(self) -> None:
        """Has `idle` called soon."""
        with self._changed:
            if not self._is_closing:
                self._is_to_look = True
                self._wake()

    def abort(self, copy: Copy) -> None:
        """Ends a copy; when this returns no byte of it is written any more."""
        with self._changed:
            copy.is_aborted = True
            self._changed.notify_all()
            if copy.place is None:
                # What it needs is being made ready at most, which may wait for another process.
                return
        copy.over.wait()

    def close(self) -> None:
        """Ends all copies, and gives the streams back."""
        with self._changed:
            self._is_closing = True
            for copy in (*self._waiting, *self._active):
                copy.is_aborted = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _wake(self) -> None:
        if self._thread is None:
            run = threading.Thread(target=self._run, name="mesh-rdma-cuda-copies", daemon=True)
            self._thread = run
            run.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while self._wait():
            self._hand_over()
            if self._flight:
                self._land()
        for device, events in self._events.items():
            for event in events:
                self._driver.destroy_event(device, event)
        for device, stream in self._streams.items():
            self._driver.destroy_stream(device, stream)

    def _wait(self) -> bool:
        """Waits for something to do; says whether there will be any."""
        while True:
            with self._changed:
                if self._waiting or self._active or self._flight:
                    return True
                self._is_to_look = False
            # With the lock free: it may ask another process.
            pause = self._idle()
            with self._changed:
                if self._waiting:
                    return True
                if self._is_closing:
                    return False
                if not self._is_to_look:
                    self._changed.wait(pause)

    def _hand_over(self) -> None:
        while len(self._flight) < _PIECES_MAX:
            copy = self._next()
            if copy is None:
                return
            if not copy.is_all_begun:
                try:
                    self._begin_piece(copy)
                except Exception as error:
                    copy.error = error
            if not copy.is_all_begun:
                self._active.append(copy)
            elif not copy.under_way:
                self._end(copy)

    def _next(self) -> Copy | None:
        with self._changed:
            if self._waiting and len(self._active) < _COPIES_MAX:
                return self._waiting.popleft()
            return self._active.popleft() if self._active else None

    def _begin_piece(self, copy: Copy) -> None:
        if copy.place is None:
            place = copy.prepare()
            if copy.after is not None:
                self._driver.follow(place.device, self._stream(place.device), copy.after.event)
            with self._changed:
                # From now on who aborts it waits.
                copy.place = place
                if copy.is_aborted:
                    return
        device, to, from_ = copy.place
        copy.check()
        nbytes = min(copy.piece_len, copy.nbytes - copy.begun)
        stream = self._stream(device)
        free = self._events.setdefault(device, [])
        event = free.pop() if free else self._driver.new_event(device)
        self._driver.copy(device, stream, to + copy.begun, from_ + copy.begun, nbytes)
        copy.begun += nbytes
        copy.under_way += 1
        self._flight.append((device, event, copy))
        self._driver.record(device, event, stream)

    def _land(self) -> None:
        """Waits for the oldest piece."""
        device, event, copy = self._flight.popleft()
        try:
            self._driver.wait_for(device, event)
        except Exception as error:
            copy.error = error
        self._events[device].append(event)
        copy.under_way -= 1
        if copy.is_all_begun and not copy.under_way:
            if copy in self._active:
                self._active.remove(copy)
            self._end(copy)

    def _end(self, copy: Copy) -> None:
        error = copy.error
        if error is None and copy.is_aborted:
            error = RDMACancelled("the copy was ended")
        if error is None:
            try:
                copy.check()
            except Exception as failure:
                error = failure
        if copy.after is not None:
            self._driver.destroy_event(*copy.after)
        copy.finish(error)
        copy.over.set()

    def _stream(self, device: int) -> int:
        if device not in self._streams:
            self._streams[device] = self._driver.new_stream(device)
        return self._streams[device]


def record_stream_event(driver: CudaDriver, device: int) -> StreamEvent:
    """Marks what this thread's program has begun on a device, for a copy to come after it.

    That is torch's current stream where torch is used, or else the one that all begin with.
    """
    stream = 0
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        stream = int(torch.cuda.current_stream(device).cuda_stream)
    stream_event = StreamEvent(device, driver.new_event(device))
    driver.record(device, stream_event.event, stream)
    return stream_event


def wait_for_stream_event(device: int) -> None:
    """Waits for what a copy has to come after, where no device makes it.

    Raises:
        RDMATransportError: This process does not use the driver.
    """
    driver = needed_driver()
    stream_event = record_stream_event(driver, device)
    try:
        driver.wait_for(*stream_event)
    finally:
        driver.destroy_event(*stream_event)


_lock = threading.Lock()
_free: dict[int, list[tuple[int, int]]] = {}


def copy_now(driver: CudaDriver, device: int, to: int, from_: int, nbytes: int) -> None:
    """Copies a short range by a device, and waits.

    Raises:
        CudaError: It has failed.
    """
    with _lock:
        free = _free.setdefault(device, [])
        pair = free.pop() if free else None
    stream, event = pair or (driver.new_stream(device), driver.new_event(device))
    try:
        driver.copy(device, stream, to, from_, nbytes)
    finally:
        # Also after a failure: nothing may come later.
        driver.record(device, event, stream)
        driver.wait_for(device, event)
    with _lock:
        free.append((stream, event))


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _free.clear()


os.register_at_fork(after_in_child=_forget)
