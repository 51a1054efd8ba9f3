"""Memory that any process of the job may read and write, wherever it lies."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from mesh_core.spi import done_future, failed_future, future_of, is_recorded
from mesh_rdma import _core
from mesh_rdma._buffers.memory import memory_of, writable_memory_of
from mesh_rdma._errors import (
    RDMABoundsError,
    RDMAError,
    RDMAReadOnlyError,
    RDMATransportError,
)
from mesh_rdma._operations.pull import Pull
from mesh_rdma._operations.remote_operation import begin_pulls
from mesh_rdma._paths.selection import Path, path_to
from mesh_rdma._requests.handlers import start_serving
from mesh_rdma._telemetry import record_failed_transfer, record_transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import Future
    from mesh_rdma._buffers.memory import Memory
    from mesh_rdma._plugins.target import PluginTarget
    from mesh_rdma._staged.target import StagedTarget

__all__ = ["RDMABuffer", "checked_word"]

_DONE = done_future(None)
_TIMEOUT_S = 60.0

# What this process has in memory, and whom it is connected to, is not its child's.
os.register_at_fork(after_in_child=_core.forget)


class RDMABuffer:
    """A range of memory of one process, that every process with this handle may use.

    Send the handle inside any message; it is about 200 bytes however long the memory is. The memory
    stays where it is and is used in place: it is registered until `drop()`, or until no process has
    a handle any more.

    Args:
        data: Contiguous memory of this process: anything with the buffer protocol, a torch tensor,
            or what has DLPack. Read-only memory can be read by others and not written.

    Raises:
        TypeError: It has no memory that we know of.
        ValueError: It is not contiguous, or empty.

    Example:
        >>> weights = RDMABuffer(numpy_array)          # in one process
        >>> weights.read_into(other_array).get()       # in another one, that got the handle
    """

    __slots__ = ("_handle", "_offset", "_path", "_size")

    def __init__(self, data: Memory) -> None:
        local = memory_of(data)
        if not local.nbytes:
            raise RDMABoundsError("there are no bytes to register: give memory that has some")
        start_serving()
        self._handle = _core.Handle(local)
        self._offset = 0
        self._size = local.nbytes
        self._path: Path | None = None

    @classmethod
    def _of(
        cls, handle: _core.Handle, size: int, offset: int = 0, path: Path | None = None
    ) -> RDMABuffer:
        """Makes one of a handle that there is."""
        buffer = object.__new__(cls)
        buffer._handle = handle
        buffer._offset = offset
        buffer._size = size
        buffer._path = path
        return buffer

    def size(self) -> int:
        """Gives the number of bytes."""
        return self._size

    __len__ = size

    @property
    def owner(self) -> str:
        """What the process is called whose memory it is."""
        return self._handle.owner

    @property
    def is_writable(self) -> bool:
        """Whether others may write it."""
        return self._handle.is_writable

    @property
    def backend(self) -> str:
        """The transport by which this process reaches it.

        Raises:
            RDMAPeerDied: The owner is gone.
        """
        return self._reach().transport

    def __getitem__(self, part: slice) -> RDMABuffer:
        """Gives a handle of the bytes `start:stop` of the same registration."""
        start, stop, step = part.indices(self._size)
        if step != 1:
            raise RDMABoundsError(f"a step of {step}: bytes of a slice lie side by side")
        return self.slice(start, max(stop - start, 0))

    def slice(self, offset: int, length: int) -> RDMABuffer:
        """Gives a handle of `length` bytes from `offset` on; dropping either drops both.

        Raises:
            RDMABoundsError: The bytes are not all in the buffer.
        """
        self._check(offset, length)
        return RDMABuffer._of(self._handle, length, self._offset + offset, self._path)

    def via(self, transport: str) -> RDMABuffer:
        """Gives a handle of the same bytes that takes this transport and no other.

        For tests and measurements: the best one is taken by itself. The choice is this process's
        own; a handle that is sent elsewhere chooses anew there.

        Args:
            transport: Its name: memory, arena, attach, unix, tcp, staged, or that of a plug-in.

        Raises:
            RDMATransportError: It cannot be used for this buffer; the message says why.
            RDMAPeerDied: The owner is gone.
        """
        part = self.slice(0, self._size)
        part._path = path_to(self._own_handle(), transport)
        part._path.wanted = transport
        return part

    def read_into(
        self,
        dst: Memory,
        *,
        offset: int = 0,
        length: int | None = None,
        timeout: float | None = _TIMEOUT_S,
    ) -> Future[None]:
        """Copies bytes of the buffer to the beginning of `dst`.

        Args:
            dst: Writable contiguous memory of this process; what is longer is left as it is.
            offset: The first byte of the buffer.
            length: How many; all the rest if left out.
            timeout: Seconds until the transfer is given up; None is no limit. When the future
                raises, nothing is written to `dst` any more.

        Raises:
            RDMABoundsError: The bytes are not all in the buffer, or `dst` is too short.
            RDMAReadOnlyError: `dst` may not be written.

        The future raises `RDMAReleased`, `RDMAPeerDied`, `RDMATimeout` or `RDMACancelled`.
        """
        local = writable_memory_of(dst)
        if length is None:
            length = self._size - offset
        self._check(offset, length)
        if local.nbytes != length:
            if local.nbytes < length:
                raise RDMABoundsError(
                    f"the destination has {local.nbytes} bytes, and {length} are to be read: "
                    f"give a longer one, or length="
                )
            local = local.part(0, length)
        return self._copy("read", local, offset, timeout)

    def write_from(
        self,
        src: Memory,
        *,
        offset: int = 0,
        length: int | None = None,
        timeout: float | None = _TIMEOUT_S,
    ) -> Future[None]:
        """Copies bytes from the beginning of `src` into the buffer.

        Args:
            src: Contiguous memory of this process.
            offset: Where in the buffer.
            length: How many bytes; all of `src` if left out.
            timeout: Seconds until the transfer is given up; None is no limit. When the future
                raises, nothing is written to the buffer any more.

        Raises:
            RDMABoundsError: The bytes do not all fit into the buffer, or `src` is too short.
            RDMAReadOnlyError: The buffer may not be written.

        The future raises `RDMAReleased`, `RDMAPeerDied`, `RDMATimeout` or `RDMACancelled`.
        """
        self._check_writable()
        local = memory_of(src)
        if length is None:
            length = local.nbytes
        self._check(offset, length)
        if local.nbytes != length:
            if local.nbytes < length:
                raise RDMABoundsError(f"the source has {local.nbytes} bytes, not {length}")
            local = local.part(0, length)
        return self._copy("write", local, offset, timeout)

    def copy_from(
        self,
        src: RDMABuffer,
        *,
        offset: int = 0,
        src_offset: int = 0,
        length: int | None = None,
        timeout: float | None = _TIMEOUT_S,
    ) -> Future[None]:
        """Has the owner of this buffer copy bytes of another one to it, whoever owns that.

        The bytes go from owner to owner by the best path between them; this process only says so.
        The two ranges have no byte in common.

        Args:
            src: Where they come from.
            offset: Where in this buffer they go.
            src_offset: The first byte of `src`.
            length: How many bytes; all the rest of `src` if left out.
            timeout: Seconds until it is given up; None is no limit. When the future raises,
                nothing is written to the buffer any more.

        Raises:
            RDMABoundsError: The bytes are not all in the buffers.
            RDMAReadOnlyError: This buffer may not be written.

        The future raises as `read_into` does; the words of `RDMAPeerDied` say which of the owners
        is gone.
        """
        self._check_writable()
        if length is None:
            length = src._size - src_offset
        src._check(src_offset, length)
        self._check(offset, length)
        if not length:
            return _DONE
        from_, to = src._offset + src_offset, self._offset + offset
        pull = Pull(src._handle, self._handle, from_, to, length)
        try:
            (copy,) = begin_pulls([pull], timeout)
        except RDMAError as error:
            return failed_future(error)
        if is_recorded():
            record_transfer(copy, "copy", length, peer=self.owner)
        return future_of(copy)

    def fetch_add(
        self, add: int, *, offset: int = 0, timeout: float | None = _TIMEOUT_S
    ) -> Future[int]:
        """Adds to the unsigned 64-bit word at `offset` as one; gives what was there.

        Raises:
            RDMABoundsError: The word is not all in the buffer, or the number has more bits.
            RDMAReadOnlyError: The buffer may not be written.

        The future raises `RDMAAlignmentError` where no word begins.
        """
        add = checked_word(add)
        self._check_writable()
        self._check(offset, 8)
        return self._now(lambda path: path.fetch_add(self._offset + offset, add, timeout))

    def compare_and_swap(
        self, compare: int, swap: int, *, offset: int = 0, timeout: float | None = _TIMEOUT_S
    ) -> Future[int]:
        """Puts `swap` into the unsigned 64-bit word at `offset` if `compare` is there, as one.

        Gives what was there: equal to `compare` if the word was changed.

        Raises:
            RDMABoundsError: The word is not all in the buffer, or a number has more bits.
            RDMAReadOnlyError: The buffer may not be written.

        The future raises `RDMAAlignmentError` where no word begins.
        """
        compare, swap = checked_word(compare), checked_word(swap)
        self._check_writable()
        self._check(offset, 8)
        at = self._offset + offset
        return self._now(lambda path: path.compare_and_swap(at, compare, swap, timeout))

    def view(self) -> memoryview:
        """Shows the bytes where they are, without a copy: read-only, as they change.

        Only memory of the arena (see `allocate`) of a process of this machine can be shown. Its
        owner keeps it for as long as the view is used, also after `drop()`.

        Raises:
            RDMATransportError: The bytes are elsewhere.
            RDMAReleased: The buffer was dropped.
        """
        if self._handle.is_on_device:
            raise RDMATransportError(
                "memory of a device cannot be shown to the processor: copy it with read_into"
            )
        loan = self._reach().borrow(self._offset, self._size)
        return memoryview(loan)

    def drop(self, *, timeout: float | None = _TIMEOUT_S) -> Future[None]:
        """Takes the registration back, for all who have a handle.

        When the future is done no process reads or writes the memory any more. It is done at once
        unless somebody is in the middle of a copy.

        The future raises `RDMAReleased` where it was dropped before, or `RDMATimeout`: then the
        memory is kept until nobody copies any more.
        """
        return self._now(lambda path: path.release(timeout))

    def explain(self) -> str:
        """Says by which transport this process reaches the buffer, and why by no other."""
        return self._reach().explanation()

    def __repr__(self) -> str:
        return f"<RDMABuffer of {self._size} bytes in {self.owner}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RDMABuffer):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> Any:
        return restore, (self._handle.encode(), self._offset, self._size)

    def _identity(self) -> tuple[Any, ...]:
        return (self._handle.identity, self._offset, self._size)

    def _own_handle(self) -> _core.Handle:
        """Gives the handle; in a forked child, one of its own in place of the parent's."""
        if self._handle.is_stale:
            self._handle = _core.Handle.decode(self._handle.lend())
        return self._handle

    def _reach(self) -> Path:
        path = self._path
        if path is None:
            path = self._path = path_to(self._own_handle())
        elif path.target.is_over:
            wanted = path.wanted
            path = self._path = path_to(self._own_handle(), wanted)
            path.wanted = wanted
        return path

    def _copy(
        self, verb: str, local: _core.Local, offset: int, timeout: float | None
    ) -> Future[None]:
        if self._path is not None and self._path.wanted is not None:
            # What cannot be is refused at the call, where the way was chosen by the caller.
            self._path.target_for(local)
        try:
            return self._begin(self._path or self._reach(), verb, local, offset, timeout)
        except RDMAError as error:
            failure = error
        path = self._path
        if path is None or not path.target.is_over:
            return self._failed(verb, local, failure)
        # The connection was lost, which need not mean the owner: once more, by another one.
        try:
            return self._begin(self._reach(), verb, local, offset, timeout)
        except RDMAError as error:
            return self._failed(verb, local, error)

    def _failed(self, verb: str, local: _core.Local, error: RDMAError) -> Future[None]:
        record_failed_transfer(error, verb, local.nbytes, self.owner)
        return failed_future(error)

    def _begin(
        self, path: Path, verb: str, local: _core.Local, offset: int, timeout: float | None
    ) -> Future[None]:
        target = path.target_for(local)
        copy = target.read if verb == "read" else target.write
        started_ns = time.monotonic_ns() if is_recorded() else 0
        transfer = copy(local, self._offset + offset, timeout)
        if started_ns:
            record_transfer(
                transfer,
                verb,
                local.nbytes,
                transport=target.transport,
                peer=self.owner,
                started_ns=started_ns,
            )
        return _DONE if transfer is None else future_of(transfer)

    def _now(self, do: Callable[[_core.Target | PluginTarget | StagedTarget], Any]) -> Future[Any]:
        try:
            return done_future(do(self._reach().target))
        except RDMAError as error:
            return failed_future(error)

    def _check(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self._size:
            raise RDMABoundsError(
                f"bytes {offset} to {offset + length} of a buffer of {self._size} bytes: "
                f"stay inside"
            )

    def _check_writable(self) -> None:
        if not self._handle.is_writable:
            raise RDMAReadOnlyError(
                f"{self!r} was registered from read-only memory: register something writable"
            )


def checked_word(number: int) -> int:
    """Gives the number back.

    Raises:
        RDMABoundsError: It is no unsigned number of 64 bits.
    """
    if not 0 <= number < 1 << 64:
        raise RDMABoundsError(f"{number} is no unsigned number of 64 bits")
    return number


def restore(handle: bytes, offset: int, size: int) -> RDMABuffer:
    """Makes the handle that was pickled."""
    start_serving()
    return RDMABuffer._of(_core.Handle.decode(handle), size, offset)
