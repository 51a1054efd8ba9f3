"""Copies executed by devices: one thread submits their pieces and polls for completion."""

from __future__ import annotations

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from mesh_rdma._cuda.driver import CudaDriver, require_driver
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

#: Piece length for copies between devices; the cost of a call is negligible for this length.
_DEVICE_PIECE_LEN = 64 << 20
#: Piece length if one side is host memory, which is slower.
_HOST_PIECE_LEN = 8 << 20
#: The maximum number of pieces in flight; aborting a copy waits for at most these.
_PIECES_MAX = 4
#: The maximum number of concurrent copies; each has announced its slot at an owner.
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

    def release(self) -> None:
        """Let another copy use the event."""
        _free_events.setdefault(self.device, []).append(self.event)


class Copy(ABC):
    """One copy; subclasses define its resources and handle its completion."""

    def __init__(self, nbytes: int, is_between_devices: bool, after: StreamEvent | None) -> None:
        self.nbytes = nbytes
        self.after = after
        self.piece_len = _DEVICE_PIECE_LEN if is_between_devices else _HOST_PIECE_LEN
        self.place: CopyAddresses | None = None
        self.begun = 0
        self.in_in_flight = 0
        self.is_aborted = False
        self.error: Exception | None = None
        self.over = threading.Event()

    @abstractmethod
    def prepare(self) -> CopyAddresses:
        """Acquire the resources of the copy; it is called before the first piece.

        Raises:
            RDMAError: The copy cannot start.
        """

    @abstractmethod
    def check(self) -> None:
        """Check that the copy may continue; it is called before each piece, and after the last one.

        Raises:
            RDMAError: The copy must end.
        """

    @abstractmethod
    def finish(self, error: Exception | None) -> None:
        """Release the resources; from now on, no byte is written by this copy."""

    @property
    def is_all_begun(self) -> bool:
        """Whether all pieces that will be submitted have been submitted."""
        return self.is_aborted or self.error is not None or self.begun == self.nbytes


class Copier:
    """Runs the copies of one channel in turns, on dedicated streams.

    Args:
        driver: The driver that executes the copies.
        idle: Called when no copy is left; returns the number of seconds until the next call.
    """

    def __init__(self, driver: CudaDriver, idle: Callable[[], float | None]) -> None:
        self._driver = driver
        self._idle = idle
        self._changed = threading.Condition()
        self._waiting: deque[Copy] = deque()
        self._active: deque[Copy] = deque()
        self._in_flight: deque[tuple[int, int, Copy]] = deque()
        self._streams: dict[int, int] = {}
        self._events: dict[int, list[int]] = {}
        self._is_closing = False
        self._is_idle_due = False
        self._thread: threading.Thread | None = None

    def start(self, copy: Copy) -> None:
        """Queue a copy."""
        with self._changed:
            if self._is_closing:
                raise RDMACancelled("cuda: the channel was closed")
            self._waiting.append(copy)
            self._wake()

    def wake_idle(self) -> None:
        """Make the thread call `idle` soon."""
        with self._changed:
            if not self._is_closing:
                self._is_idle_due = True
                self._wake()

    def abort(self, copy: Copy) -> None:
        """Abort a copy; after this returns, no byte is written by it."""
        with self._changed:
            copy.is_aborted = True
            self._changed.notify_all()
            if copy.place is None:
                # No piece has been submitted yet, and `prepare` may wait for another process.
                return
        copy.over.wait()

    def close(self) -> None:
        """Abort all copies, and destroy the streams."""
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
            if self._in_flight:
                self._await_oldest()
        for device, events in self._events.items():
            for event in events:
                self._driver.destroy_event(device, event)
        for device, stream in self._streams.items():
            self._driver.destroy_stream(device, stream)

    def _wait(self) -> bool:
        """Wait for work; return False if the copier is closing and no work is left."""
        while True:
            with self._changed:
                if self._waiting or self._active or self._in_flight:
                    return True
                self._is_idle_due = False
            # This runs without the lock because it may send a request to another process.
            pause = self._idle()
            with self._changed:
                if self._waiting:
                    return True
                if self._is_closing:
                    return False
                if not self._is_idle_due:
                    self._changed.wait(pause)

    def _hand_over(self) -> None:
        while len(self._in_flight) < _PIECES_MAX:
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
            elif not copy.in_in_flight:
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
                # From now on, `abort` waits for this copy.
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
        copy.in_in_flight += 1
        self._in_flight.append((device, event, copy))
        self._driver.record(device, event, stream)

    def _await_oldest(self) -> None:
        """Wait for the oldest piece in flight."""
        device, event, copy = self._in_flight.popleft()
        try:
            self._driver.wait_for(device, event)
        except Exception as error:
            copy.error = error
        self._events[device].append(event)
        copy.in_in_flight -= 1
        if copy.is_all_begun and not copy.in_in_flight:
            if copy in self._active:
                self._active.remove(copy)
            self._end(copy)

    def _end(self, copy: Copy) -> None:
        error = copy.error
        if error is None and copy.is_aborted:
            error = RDMACancelled("the copy was cancelled")
        if error is None:
            try:
                copy.check()
            except Exception as failure:
                error = failure
        if copy.after is not None:
            copy.after.release()
        copy.finish(error)
        copy.over.set()

    def _stream(self, device: int) -> int:
        if device not in self._streams:
            self._streams[device] = self._driver.new_stream(device)
        return self._streams[device]


def record_stream_event(driver: CudaDriver, device: int) -> StreamEvent:
    """Record an event on a device after all work that this thread has submitted there.

    The event is recorded on the current stream of torch if torch is in use, otherwise on the
    default stream.
    """
    stream = 0
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        stream = int(torch.cuda.current_stream(device).cuda_stream)
    try:
        event = _free_events[device].pop()
    except (KeyError, IndexError):
        event = driver.new_event(device)
    stream_event = StreamEvent(device, event)
    driver.record(device, event, stream)
    return stream_event


def wait_for_stream_event(device: int) -> None:
    """Wait for the work that must precede a copy that no device executes.

    Raises:
        RDMATransportError: This process does not use the driver.
    """
    driver = require_driver()
    stream_event = record_stream_event(driver, device)
    try:
        driver.wait_for(*stream_event)
    finally:
        stream_event.release()


_lock = threading.Lock()
#: Events of `record_stream_event`, by device. Creating one takes longer than starting a copy.
_free_events: dict[int, list[int]] = {}
_free: dict[int, list[tuple[int, int]]] = {}


def copy_now(driver: CudaDriver, device: int, to: int, from_: int, nbytes: int) -> None:
    """Copy a short range with a device, and wait for the copy.

    Raises:
        CudaError: The copy failed.
    """
    with _lock:
        free = _free.setdefault(device, [])
        pair = free.pop() if free else None
    stream, event = pair or (driver.new_stream(device), driver.new_event(device))
    try:
        driver.copy(device, stream, to, from_, nbytes)
    finally:
        # Wait after a failure, too: no byte may be written after this function returns.
        driver.record(device, event, stream)
        driver.wait_for(device, event)
    with _lock:
        free.append((stream, event))


def _reset_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _free.clear()
    _free_events.clear()


os.register_at_fork(after_in_child=_reset_after_fork)
