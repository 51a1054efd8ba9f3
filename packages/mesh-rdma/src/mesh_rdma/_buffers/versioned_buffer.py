"""Memory that is published in versions, so that readers never see a partially written state.

The arena holds a fixed number of areas next to each other. The writer fills an area that no reader
uses, registers it, and publishes it in the *head*, a record of a few words; each version is a
separate registration. A reader reads the head, takes a lease on the version that it names, and
reads that version. Before the writer reuses an area, it must reclaim the registration of the area,
which succeeds only if no reader holds it or copies from it. The protocol therefore needs no lock,
and the lease of a reader that dies is released. The head outlives the writer until the last reader
is gone; its final record states that no further version will be published.
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
from mesh_core.spi import CompletionFuture
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
#: The head contains the step, the index of the area, and the slot and key of its registration,
#: followed by a checksum, because it may be read while it is written. A key is never zero, except
#: in the final record.
_HEAD = struct.Struct("<qQQQ")
_CHECK = struct.Struct("<Q")
_HEAD_LEN = _HEAD.size + _CHECK.size
_END_RECORD = (0, 0, 0, 0)
_PAUSE_MIN_S = 0.0001
_PAUSE_MAX_S = 0.005


class VersionedBuffer:
    """The writer of a versioned buffer.

    It can be sent in any message and is received as a `VersionedReader`.

    Args:
        nbytes: The size of a version, in bytes.
        versions: The maximum number of versions in memory: one to read, one to write, and one for
            each reader that holds an older version.

    Raises:
        RDMABoundsError: `nbytes` is not positive, or `versions` is less than two.

    Example:
        >>> weights = VersionedBuffer(nbytes)
        >>> with weights.write(step=7) as memory:
        ...     memory[:] = data
    """

    def __init__(self, nbytes: int, *, versions: int = 3) -> None:
        if nbytes <= 0 or versions < 2:
            raise RDMABoundsError(
                f"cannot allocate {versions} versions of {nbytes} bytes: pass at least two versions"
                " of one byte"
            )
        self._area_nbytes = -(-nbytes // _PAGE) * _PAGE
        self._nbytes = nbytes
        self._memory = memoryview(_core.Block(_PAGE + versions * self._area_nbytes))
        self._head = RDMABuffer(self._memory[:_HEAD_LEN].toreadonly())
        self._places: list[RDMABuffer | None] = [None] * versions
        self._latest: int | None = None
        self._step: int | None = None
        self._writing = threading.Lock()
        # At process exit, readers detect the death of the writer without this.
        weakref.finalize(self, _end, self._memory, self._head).atexit = False

    def size(self) -> int:
        """Return the size of a version, in bytes."""
        return self._nbytes

    @property
    def step(self) -> int | None:
        """The number of the latest version; None before the first one."""
        return self._step

    @contextmanager
    def write(
        self, *, step: int | None = None, timeout: float | None = _TIMEOUT_S
    ) -> Iterator[memoryview]:
        """Provide memory for the next version, and publish it at the end of the `with` block.

        The memory initially has the content of an older version. If the block raises, nothing is
        published.

        Args:
            step: The number of the version, larger than all previous ones; by default, the last
                number plus one.
            timeout: Seconds to wait for a version that no reader holds; None means no limit.

        Raises:
            RDMABoundsError: The number is not larger, or another thread is writing.
            RDMATimeout: Readers hold all the other versions.
        """
        if not self._writing.acquire(blocking=False):
            raise RDMABoundsError("another thread is writing: write one version at a time")
        try:
            step = self._next_step(step)
            place = self._free_place(timeout)
            start = _PAGE + place * self._area_nbytes
            memory = self._memory[start : start + self._nbytes]
            yield memory
            self._publish(step, place, memory)
        finally:
            self._writing.release()

    def publish(
        self, data: Memory, *, step: int | None = None, timeout: float | None = _TIMEOUT_S
    ) -> int:
        """Copy `data` into the next version, publish it, and return its number.

        Raises:
            RDMABoundsError: `data` does not have the size of a version, or the number is not
                larger.
            RDMATimeout: Readers hold all the other versions.
        """
        local = memory_of(data)
        if local.nbytes != self._nbytes:
            raise RDMABoundsError(
                f"the source has {local.nbytes} bytes, but a version has {self._nbytes}"
            )
        with self.write(step=step, timeout=timeout) as memory:
            RDMABuffer(memory).write_from(local, timeout=timeout).get()
        assert self._step is not None
        return self._step

    def reader(self) -> VersionedReader:
        """Return a reader for this process."""
        return VersionedReader(self._head, self._nbytes, self._area_nbytes)

    def __reduce__(self) -> Any:
        return VersionedReader, (self._head, self._nbytes, self._area_nbytes)

    def __repr__(self) -> str:
        return f"<VersionedBuffer of {self._nbytes} bytes at step {self._step}>"

    def _next_step(self, step: int | None) -> int:
        last = -1 if self._step is None else self._step
        if step is None:
            return last + 1
        if step <= last:
            raise RDMABoundsError(f"step {step} is not after step {last}: steps must increase")
        return step

    def _free_place(self, timeout: float | None) -> int:
        """Find an area that no reader uses, and reclaim its registration."""
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
                    f"readers hold all {count - 1} older versions: release some, or allocate more"
                    f" with versions={count + 1}"
                )
            time.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX_S)

    def _publish(self, step: int, place: int, memory: memoryview) -> None:
        version = RDMABuffer(memory.toreadonly())
        self._places[place] = version
        _, slot, key = version._handle.identity
        _write_head(self._memory, (step, place, slot, key))
        self._latest, self._step = place, step


def _write_head(memory: memoryview, record: tuple[int, int, int, int]) -> None:
    """Write a record to the head."""
    words = _HEAD.pack(*record)
    memory[:_HEAD_LEN] = words + _CHECK.pack(zlib.crc32(words) + 1)


def _end(memory: memoryview, head: RDMABuffer) -> None:
    """Publish to readers that there will be no further version."""
    # A forked child has a copy of the writer, but is not the writer.
    if not head._handle.is_stale:
        _write_head(memory, _END_RECORD)


class Version:
    """A lease on one version, which does not change until `release` or the end of a `with` block.

    Attributes:
        step: The number of the version.
        buffer: The bytes of the version; a read-only buffer.
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
            raise RDMAReleased(f"this lease of step {self.step} was released: acquire another one")
        return self._buffer

    def view(self) -> memoryview:
        """Return a view of the bytes, on the machine of the writer only; see `RDMABuffer.view`."""
        return self.buffer.view()

    def release(self) -> None:
        """Allow the writer to reuse the memory after all views of it are gone."""
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
    """The reader of a `VersionedBuffer`; it can be sent to other processes."""

    def __init__(self, head: RDMABuffer, nbytes: int, area_nbytes: int) -> None:
        self._head = head
        self._nbytes = nbytes
        self._area_nbytes = area_nbytes

    def size(self) -> int:
        """Return the size of a version, in bytes."""
        return self._nbytes

    def step(self) -> int | None:
        """Fetch the number of the latest version; None before the first one.

        Raises:
            RDMAPeerDied: The process of the writer is gone.
            RDMAReleased: The writer has dropped the buffer.
        """
        found = self._fetch_head(_TIMEOUT_S)
        return None if found is None else found[0]

    def hold(self, *, after: int | None = None, timeout: float | None = _TIMEOUT_S) -> Version:
        """Take a lease on the latest version, which then does not change.

        Args:
            after: Wait for a version with a number above this one.
            timeout: Seconds to wait for it; None means no limit.

        Raises:
            RDMAPeerDied: The process of the writer is gone.
            RDMAReleased: The writer has dropped the buffer, or another process has dropped the
                version.
            RDMATimeout: No such version was published in time.
        """
        until = None if timeout is None else time.monotonic() + timeout
        pause = _PAUSE_MIN_S
        while (version := self._try_hold(after, timeout)) is None:
            if until is not None and time.monotonic() >= until:
                raise self._timeout_error(after, timeout)
            time.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX_S)
        return version

    def read_into(
        self, dst: Memory, *, after: int | None = None, timeout: float | None = _TIMEOUT_S
    ) -> Future[int]:
        """Copy the latest version to `dst`; the result is its number.

        The future raises `RDMATimeout`, `RDMAPeerDied`, `RDMAReleased` or `RDMACancelled`.

        Args:
            dst: Writable contiguous memory of this process, at least as long as a version.
            after: Wait for a version with a number above this one.
            timeout: The limit in seconds for waiting and copying together; None means no limit.
        """
        try:
            version = self._try_hold(after, timeout)
        except RDMAError as error:
            return CompletionFuture.failed(error)
        if version is not None:
            return _step_of(version, version.buffer.read_into(dst, timeout=timeout))
        return self._read_later(dst, after, timeout)

    @returns_future
    async def _read_later(self, dst: Memory, after: int | None, limit: float | None) -> int:
        # `import mesh_rdma` must not load asyncio (170 ms), and few processes wait for a version.
        import asyncio  # noqa: PLC0415

        until = None if limit is None else time.monotonic() + limit
        pause = _PAUSE_MIN_S
        while (version := self._try_hold(after, limit)) is None:
            if until is not None and time.monotonic() >= until:
                raise self._timeout_error(after, limit)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX_S)
        left = None if until is None else max(until - time.monotonic(), 0.0)
        with version:
            await version.buffer.read_into(dst, timeout=left)
        return version.step

    def __repr__(self) -> str:
        return f"<VersionedReader of {self._nbytes} bytes of {self._head.owner}>"

    def __reduce__(self) -> Any:
        return VersionedReader, (self._head, self._nbytes, self._area_nbytes)

    def _try_hold(self, after: int | None, timeout: float | None) -> Version | None:
        """Take a lease on the latest version, unless it is not above `after`."""
        refused = None
        while (found := self._fetch_head(timeout)) is not None:
            step, place, slot, key = found
            if after is not None and step <= after:
                return None
            try:
                start = _PAGE + place * self._area_nbytes
                handle = self._head._handle.sibling(slot, key, start, self._nbytes)
            except RDMAReleased:
                # The writer reclaims a version only after the head names another one, so the head
                # must have changed. If it has not, another process has dropped the version.
                if found == refused:
                    raise RDMAReleased(
                        f"step {step} was dropped by a process that had it: wait for the next one"
                        f" with after={step}"
                    ) from None
                refused = found
                continue
            # The version is adjacent to the head and is reached over the same transport.
            path = path_to(handle, self._head.backend)
            return Version(step, RDMABuffer._of(handle, self._nbytes, 0, path))
        return None

    def _fetch_head(self, timeout: float | None) -> tuple[int, int, int, int] | None:
        """Read the head, and repeat until the record is consistent."""
        head = bytearray(_HEAD_LEN)
        while True:
            self._head.read_into(head, timeout=timeout).get()
            words = bytes(head[: _HEAD.size])
            (check,) = _CHECK.unpack_from(head, _HEAD.size)
            if check == zlib.crc32(words) + 1:
                found = _HEAD.unpack(words)
                if found == _END_RECORD:
                    raise RDMAReleased(
                        "the writer has released the buffer: request another one from it"
                    )
                return found
            if not any(head):
                return None

    def _timeout_error(self, after: int | None, timeout: float | None) -> RDMATimeout:
        wanted = "" if after is None else f" after step {after}"
        return RDMATimeout(f"no version{wanted} was published in {timeout} s")


class _VersionRead:
    """A read of one version, as a `mesh_core.spi.Completion`; the lease ends with the read."""

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
    """Return a future of the number of a version, which is done when the version has been read."""
    if reading.done() and reading.exception() is None:
        version.release()
        return CompletionFuture.completed(version.step)
    return CompletionFuture(_VersionRead(version, reading))
