"""Memory that is written again and again, and of which nobody ever sees a half-written state.

A few places lie side by side in the arena. The writer fills one that nobody reads, registers it,
and says so in a *head* of a few words; each version is a registration of its own. A reader looks at
the head, takes a lease on the version that is named there, and reads. The writer takes a place for
the next version only when its registration could be taken back: nobody holds it, and nobody copies
from it. So there is no lock, and a reader that dies gives its lease back. The head outlives the
writer for as long as there are readers: its last words are that there will be no other version.
"""

from __future__ import annotations

import struct
import threading
import time
import weakref
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mesh_core import returns_future
from mesh_core.spi import done_future, failed_future, future_of
from mesh_rdma import _core
from mesh_rdma._buffers.buffer import RDMABuffer
from mesh_rdma._buffers.memory import memory_of
from mesh_rdma._errors import RDMABoundsError, RDMAError, RDMAReleased, RDMATimeout
from mesh_rdma._paths.selection import path_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from mesh_core import Future
    from mesh_rdma._buffers.memory import Memory

__all__ = ["Version", "VersionedBuffer", "VersionedReader"]

_TIMEOUT_S = 60.0
_PAGE = 4096
#: What the head says: step, place, slot, key; behind them a checksum, since it may be read while it
#: is written. A key is never zero, except in the last words.
_HEAD = struct.Struct("<qQQQ")
_CHECK = struct.Struct("<Q")
_HEAD_LEN = _HEAD.size + _CHECK.size
_LAST_WORDS = (0, 0, 0, 0)
_PAUSE_MIN_S = 0.0001
_PAUSE_MAX_S = 0.005


class VersionedBuffer:
    """The writer's side: publishes one version after another.

    Send it in any message; it arrives as a `VersionedReader`.

    Args:
        nbytes: How many bytes a version has.
        versions: How many may be in memory at a time: one to read, one to write, and one for each
            reader that holds on to an old one.

    Raises:
        RDMABoundsError: There are no bytes, or fewer than two versions.

    Example:
        >>> weights = VersionedBuffer(nbytes)
        >>> with weights.write(step=7) as memory:
        ...     memory[:] = data
    """

    def __init__(self, nbytes: int, *, versions: int = 3) -> None:
        if nbytes <= 0 or versions < 2:
            raise RDMABoundsError(
                f"{versions} versions of {nbytes} bytes: there must be two of one byte at least"
            )
        self._room = -(-nbytes // _PAGE) * _PAGE
        self._nbytes = nbytes
        self._memory = memoryview(_core.Block(_PAGE + versions * self._room))
        self._head = RDMABuffer(self._memory[:_HEAD_LEN].toreadonly())
        self._places: list[RDMABuffer | None] = [None] * versions
        self._latest: int | None = None
        self._step: int | None = None
        self._writing = threading.Lock()
        # The end of the process is told without it.
        weakref.finalize(self, _end, self._memory, self._head).atexit = False

    def size(self) -> int:
        """Gives the number of bytes of a version."""
        return self._nbytes

    @property
    def step(self) -> int | None:
        """The number of the latest version; None before the first."""
        return self._step

    @contextmanager
    def write(
        self, *, step: int | None = None, timeout: float | None = _TIMEOUT_S
    ) -> Iterator[memoryview]:
        """Lends memory for the next version, and publishes it at the end of the block.

        The memory holds what an older version held. When the block raises, nothing is published.

        Args:
            step: The number of the version, larger than those before; one more if left out.
            timeout: Seconds to wait for a version that nobody holds; None is no limit.

        Raises:
            RDMABoundsError: The number is not larger, or somebody else is writing.
            RDMATimeout: Readers hold all the other versions.
        """
        if not self._writing.acquire(blocking=False):
            raise RDMABoundsError("another thread is writing: one version is written at a time")
        try:
            step = self._next_step(step)
            place = self._free_place(timeout)
            start = _PAGE + place * self._room
            memory = self._memory[start : start + self._nbytes]
            yield memory
            self._publish(step, place, memory)
        finally:
            self._writing.release()

    def publish(
        self, data: Memory, *, step: int | None = None, timeout: float | None = _TIMEOUT_S
    ) -> int:
        """Copies `data` into the next version and publishes it; gives its number.

        Raises:
            RDMABoundsError: `data` has not as many bytes as a version, or the number is not larger.
            RDMATimeout: Readers hold all the other versions.
        """
        local = memory_of(data)
        if local.nbytes != self._nbytes:
            raise RDMABoundsError(f"{local.nbytes} bytes, and a version has {self._nbytes}")
        with self.write(step=step, timeout=timeout) as memory:
            RDMABuffer(memory).write_from(local, timeout=timeout).get()
        assert self._step is not None
        return self._step

    def reader(self) -> VersionedReader:
        """Gives a reader for this process."""
        return VersionedReader(self._head, self._nbytes, self._room)

    def __reduce__(self) -> Any:
        return VersionedReader, (self._head, self._nbytes, self._room)

    def __repr__(self) -> str:
        return f"<VersionedBuffer of {self._nbytes} bytes at step {self._step}>"

    def _next_step(self, step: int | None) -> int:
        last = -1 if self._step is None else self._step
        if step is None:
            return last + 1
        if step <= last:
            raise RDMABoundsError(f"step {step} is not after step {last}: versions are numbered up")
        return step

    def _free_place(self, timeout: float | None) -> int:
        """Finds a place that no reader uses, and takes its version back."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = _PAUSE_MIN_S
        while True:
            for place, version in enumerate(self._places):
                if place == self._latest:
                    continue
                if version is None:
                    return place
                _, slot, key = version._handle.identity
                if _core.reclaim(slot, key, timeout):
                    self._places[place] = None
                    return place
            if until is not None and time.monotonic() >= until:
                count = len(self._places)
                raise RDMATimeout(
                    f"readers hold all {count - 1} older versions: have them release theirs, or "
                    f"make more of them with versions={count + 1}"
                )
            time.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX_S)

    def _publish(self, step: int, place: int, memory: memoryview) -> None:
        version = RDMABuffer(memory.toreadonly())
        self._places[place] = version
        _, slot, key = version._handle.identity
        _say(self._memory, (step, place, slot, key))
        self._latest, self._step = place, step


def _say(memory: memoryview, said: tuple[int, int, int, int]) -> None:
    """Writes the head."""
    words = _HEAD.pack(*said)
    memory[:_HEAD_LEN] = words + _CHECK.pack(zlib.crc32(words) + 1)


def _end(memory: memoryview, head: RDMABuffer) -> None:
    """Tells readers that nothing will be published any more."""
    # A child that was forked has a copy of the writer, and is none.
    if not head._handle.is_stale:
        _say(memory, _LAST_WORDS)


class Version:
    """One version, that stays as it is until it is released: by `release`, or a `with` block.

    Attributes:
        step: Its number.
        buffer: Its bytes; a read-only buffer.
    """

    def __init__(self, step: int, buffer: RDMABuffer) -> None:
        self.step = step
        self._buffer: RDMABuffer | None = buffer

    @property
    def buffer(self) -> RDMABuffer:
        """The bytes of the version.

        Raises:
            RDMAReleased: This lease was released.
        """
        if self._buffer is None:
            raise RDMAReleased(f"this lease of step {self.step} was released: hold another")
        return self._buffer

    def view(self) -> memoryview:
        """Shows the bytes without a copy, on the machine of the writer; see `RDMABuffer.view`."""
        return self.buffer.view()

    def release(self) -> None:
        """Lets the writer use the memory again, once views of it are gone too."""
        self._buffer = None

    def __enter__(self) -> Version:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Version {self.step}>"


class VersionedReader:
    """The reader's side of a `VersionedBuffer`; it can be sent on."""

    def __init__(self, head: RDMABuffer, nbytes: int, room: int) -> None:
        self._head = head
        self._nbytes = nbytes
        self._room = room

    def size(self) -> int:
        """Gives the number of bytes of a version."""
        return self._nbytes

    def step(self) -> int | None:
        """Asks for the number of the latest version; None before the first.

        Raises:
            RDMAPeerDied: The writer's process is gone.
            RDMAReleased: The writer has let go of the buffer.
        """
        found = self._look(_TIMEOUT_S)
        return None if found is None else found[0]

    def hold(self, *, after: int | None = None, timeout: float | None = _TIMEOUT_S) -> Version:
        """Takes a lease on the latest version, which then stays as it is.

        Args:
            after: Wait for a version with a larger number than this.
            timeout: Seconds to wait for it; None is no limit.

        Raises:
            RDMAPeerDied: The writer's process is gone.
            RDMAReleased: The writer has let go of the buffer, or somebody has dropped the version.
            RDMATimeout: There is no such version in time.
        """
        until = None if timeout is None else time.monotonic() + timeout
        pause = _PAUSE_MIN_S
        while (version := self._try_hold(after, timeout)) is None:
            if until is not None and time.monotonic() >= until:
                raise self._late(after, timeout)
            time.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX_S)
        return version

    def read_into(
        self, dst: Memory, *, after: int | None = None, timeout: float | None = _TIMEOUT_S
    ) -> Future[int]:
        """Copies the latest version to `dst`; gives its number.

        Args:
            dst: Writable contiguous memory of this process, as long as a version at least.
            after: Wait for a version with a larger number than this.
            timeout: Seconds for both together; None is no limit.

        The future raises `RDMATimeout`, `RDMAPeerDied`, `RDMAReleased` or `RDMACancelled`.
        """
        try:
            version = self._try_hold(after, timeout)
        except RDMAError as error:
            return failed_future(error)
        if version is not None:
            return _step_of(version, version.buffer.read_into(dst, timeout=timeout))
        return self._read_later(dst, after, timeout)

    @returns_future
    async def _read_later(self, dst: Memory, after: int | None, limit: float | None) -> int:
        import asyncio

        until = None if limit is None else time.monotonic() + limit
        pause = _PAUSE_MIN_S
        while (version := self._try_hold(after, limit)) is None:
            if until is not None and time.monotonic() >= until:
                raise self._late(after, limit)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX_S)
        left = None if until is None else max(until - time.monotonic(), 0.0)
        with version:
            await version.buffer.read_into(dst, timeout=left)
        return version.step

    def __repr__(self) -> str:
        return f"<VersionedReader of {self._nbytes} bytes of {self._head.owner}>"

    def __reduce__(self) -> Any:
        return VersionedReader, (self._head, self._nbytes, self._room)

    def _try_hold(self, after: int | None, timeout: float | None) -> Version | None:
        """Takes a lease on the latest version, if there is one that is wanted."""
        refused = None
        while (found := self._look(timeout)) is not None:
            step, place, slot, key = found
            if after is not None and step <= after:
                return None
            try:
                start = _PAGE + place * self._room
                handle = self._head._handle.sibling(slot, key, start, self._nbytes)
            except RDMAReleased:
                # The writer takes a version back when the head says another one. So it is new now;
                # or else it was not the writer.
                if found == refused:
                    raise RDMAReleased(
                        f"step {step} was dropped by somebody who had it: wait for the next one, "
                        f"with after={step}"
                    ) from None
                refused = found
                continue
            # It lies beside the head, and is reached as that is.
            path = path_to(handle, self._head.backend)
            return Version(step, RDMABuffer._of(handle, self._nbytes, 0, path))
        return None

    def _look(self, timeout: float | None) -> tuple[int, int, int, int] | None:
        """Reads the head until it was not written meanwhile."""
        head = bytearray(_HEAD_LEN)
        while True:
            self._head.read_into(head, timeout=timeout).get()
            words = bytes(head[: _HEAD.size])
            (check,) = _CHECK.unpack_from(head, _HEAD.size)
            if check == zlib.crc32(words) + 1:
                found = _HEAD.unpack(words)
                if found == _LAST_WORDS:
                    raise RDMAReleased("the writer has let go of the buffer: ask it for another")
                return found
            if not any(head):
                return None

    def _late(self, after: int | None, timeout: float | None) -> RDMATimeout:
        wanted = "" if after is None else f" after step {after}"
        return RDMATimeout(f"no version{wanted} was published in {timeout} s")


class _VersionRead:
    """A read of one version, as a `mesh_core.spi.Completion`: the lease ends with it."""

    def __init__(self, version: Version, reading: Future[None]) -> None:
        self._version = version
        self._reading = reading

    def wait(self, timeout: float | None) -> bool:
        try:
            self._reading.exception(timeout)
        except TimeoutError:
            return False
        return True

    def is_done(self) -> bool:
        return self._reading.done()

    def outcome(self) -> int:
        try:
            self._reading.get()
        finally:
            self._version.release()
        return self._version.step

    def cancel(self) -> bool:
        return self._reading.cancel()

    def when_done(self, callback: Callable[[], object]) -> None:
        self._reading.add_done_callback(lambda _: callback())


def _step_of(version: Version, reading: Future[None]) -> Future[int]:
    """Gives the future of a version's number, done when the version is read."""
    if reading.done() and reading.exception() is None:
        version.release()
        return done_future(version.step)
    return future_of(_VersionRead(version, reading))
