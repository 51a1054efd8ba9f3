"""Registered memory that any process of the job can read and write."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from mesh_core.spi import CompletionFuture, is_recorded
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

_DONE = CompletionFuture.completed(None)
_TIMEOUT_S = 60.0

# A forked child shares neither the registrations nor the connections of its parent.
os.register_at_fork(after_in_child=_core.reset_after_fork)


class RDMABuffer:
    """A range of memory of one process, which every process that has this handle can access.

    The handle can be sent in any message and takes about 200 bytes, regardless of the size of the
    memory. The memory is not copied or moved. It stays registered until `drop()` is called, or
    until no process has a handle.

    Args:
        data: Contiguous memory of this process: an object with the buffer protocol, a torch tensor,
            or an object that supports DLPack. Other processes can read, but not write, read-only
            memory.

    Raises:
        TypeError: `data` is not a supported kind of memory.
        ValueError: The memory is not contiguous, or empty.

    Example:
        >>> weights = RDMABuffer(numpy_array)          # in one process
        >>> weights.read_into(other_array).get()       # in another process that received the handle
    """

    __slots__ = ("_handle", "_offset", "_path", "_size")

    def __init__(self, data: Memory) -> None:
        local = memory_of(data)
        if not local.nbytes:
            raise RDMABoundsError("cannot register empty memory: pass at least one byte")
        start_serving()
        self._handle = _core.Handle(local)
        self._offset = 0
        self._size = local.nbytes
        self._path: Path | None = None

    @classmethod
    def _of(
        cls, handle: _core.Handle, size: int, offset: int = 0, path: Path | None = None
    ) -> RDMABuffer:
        """Create a buffer from an existing handle."""
        buffer = object.__new__(cls)
        buffer._handle = handle
        buffer._offset = offset
        buffer._size = size
        buffer._path = path
        return buffer

    def size(self) -> int:
        """Return the number of bytes."""
        return self._size

    __len__ = size

    @property
    def owner(self) -> str:
        """The name of the process that owns the memory."""
        return self._handle.owner

    @property
    def is_writable(self) -> bool:
        """Whether other processes can write to the memory."""
        return self._handle.is_writable

    @property
    def backend(self) -> str:
        """The name of the transport that this process uses for the buffer.

        Raises:
            RDMAPeerDied: The owner is gone.
        """
        return self._resolve_path().transport

    def __getitem__(self, part: slice) -> RDMABuffer:
        """Return a handle for the bytes `start:stop` of the same registration."""
        start, stop, step = part.indices(self._size)
        if step != 1:
            raise RDMABoundsError(f"invalid step {step}: slices of a buffer are contiguous")
        return self.slice(start, max(stop - start, 0))

    def slice(self, offset: int, length: int) -> RDMABuffer:
        """Return a handle for `length` bytes starting at `offset`; `drop` on either drops both.

        Raises:
            RDMABoundsError: The range exceeds the buffer.
        """
        self._check(offset, length)
        return RDMABuffer._of(self._handle, length, self._offset + offset, self._path)

    def via(self, transport: str) -> RDMABuffer:
        """Return a handle for the same bytes that uses only this transport.

        This is intended for tests and measurements; by default, the best transport is selected
        automatically. The choice applies to this process only: a process that receives the handle
        selects a transport again.

        Args:
            transport: The name of the transport: `memory`, `arena`, `attach`, `unix`, `tcp`,
                `staged`, or the name of a plug-in.

        Raises:
            RDMATransportError: The transport cannot be used for this buffer; the message gives the
                reason.
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
        """Copy bytes of the buffer to the beginning of `dst`.

        The future raises `RDMAReleased`, `RDMAPeerDied`, `RDMATimeout` or `RDMACancelled`.

        Args:
            dst: Writable contiguous memory of this process. If it is longer, the rest is unchanged.
            offset: The offset in the buffer, in bytes.
            length: The number of bytes; by default, all bytes from `offset` to the end.
            timeout: The limit in seconds; None means no limit. Once the future has raised, no byte
                of `dst` is written anymore.

        Raises:
            RDMABoundsError: The range exceeds the buffer, or `dst` is too short.
            RDMAReadOnlyError: `dst` is read-only.
        """
        local = writable_memory_of(dst)
        if length is None:
            length = self._size - offset
        self._check(offset, length)
        if local.nbytes != length:
            if local.nbytes < length:
                raise RDMABoundsError(
                    f"the destination has {local.nbytes} bytes, but {length} are to be read: pass a"
                    " longer one, or length="
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
        """Copy bytes from the beginning of `src` into the buffer.

        The future raises `RDMAReleased`, `RDMAPeerDied`, `RDMATimeout` or `RDMACancelled`.

        Args:
            src: Contiguous memory of this process.
            offset: The offset in the buffer, in bytes.
            length: The number of bytes; by default, all of `src`.
            timeout: The limit in seconds; None means no limit. Once the future has raised, no byte
                of the buffer is written anymore.

        Raises:
            RDMABoundsError: The bytes do not fit into the buffer, or `src` is too short.
            RDMAReadOnlyError: The buffer is read-only.
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
        """Copy bytes from another buffer into this one; the owner of this one does the copy.

        The bytes go directly from owner to owner over the best transport between them, not through
        this process. The two ranges must not overlap.

        The future raises the same errors as the future of `read_into`; the message of
        `RDMAPeerDied` states which owner is gone.

        Args:
            src: The source buffer, which any process may own.
            offset: The offset in this buffer, in bytes.
            src_offset: The offset in `src`, in bytes.
            length: The number of bytes; by default, all bytes from `src_offset` to the end of
                `src`.
            timeout: The limit in seconds; None means no limit. Once the future has raised, no byte
                of this buffer is written anymore.

        Raises:
            RDMABoundsError: The range exceeds one of the buffers.
            RDMAReadOnlyError: This buffer is read-only.
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
            return CompletionFuture.failed(error)
        if is_recorded():
            record_transfer(copy, "copy", length, peer=self.owner)
        return CompletionFuture(copy)

    def fetch_add(
        self, add: int, *, offset: int = 0, timeout: float | None = _TIMEOUT_S
    ) -> Future[int]:
        """Atomically add to the unsigned 64-bit word at `offset`; the result is its previous value.

        The future raises `RDMAAlignmentError` if the word is not aligned to eight bytes.

        Raises:
            RDMABoundsError: The word exceeds the buffer, or `add` is not an unsigned 64-bit
                integer.
            RDMAReadOnlyError: The buffer is read-only.
        """
        add = checked_word(add)
        self._check_writable()
        self._check(offset, 8)
        return self._now(lambda path: path.fetch_add(self._offset + offset, add, timeout))

    def compare_and_swap(
        self, compare: int, swap: int, *, offset: int = 0, timeout: float | None = _TIMEOUT_S
    ) -> Future[int]:
        """Atomically replace the unsigned 64-bit word at `offset` if it equals `compare`.

        The result is the previous value of the word, which equals `compare` if the word was
        replaced. The future raises `RDMAAlignmentError` if the word is not aligned to eight bytes.

        Raises:
            RDMABoundsError: The word exceeds the buffer, or a number is not an unsigned 64-bit
                integer.
            RDMAReadOnlyError: The buffer is read-only.
        """
        compare, swap = checked_word(compare), checked_word(swap)
        self._check_writable()
        self._check(offset, 8)
        at = self._offset + offset
        return self._now(lambda path: path.compare_and_swap(at, compare, swap, timeout))

    def view(self) -> memoryview:
        """Return a read-only view of the memory itself, without a copy; it reflects later writes.

        Only arena memory (see `allocate`) of a process on this machine can be viewed. The owner
        keeps the memory as long as the view is in use, even after `drop()`.

        Raises:
            RDMATransportError: The memory is not arena memory of this machine.
            RDMAReleased: The buffer was dropped.
        """
        if self._handle.is_on_device:
            raise RDMATransportError(
                "device memory cannot be mapped on the host: copy it with read_into"
            )
        view = self._resolve_path().view(self._offset, self._size)
        return memoryview(view)

    def drop(self, *, timeout: float | None = _TIMEOUT_S) -> Future[None]:
        """Release the registration for all processes that have a handle.

        When the future is done, no process reads or writes the memory anymore. It is done
        immediately unless a copy is in progress.

        The future raises `RDMAReleased` if the buffer was dropped previously, or `RDMATimeout`; in
        that case, the memory is kept until all copies in progress have ended.
        """
        return self._now(lambda path: path.release(timeout))

    def explain(self) -> str:
        """Describe which transport this process uses, and why it cannot use the others."""
        return self._resolve_path().explanation()

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
        """Return the handle; a forked child first replaces the handle of its parent."""
        if self._handle.is_stale:
            self._handle = _core.Handle.decode(self._handle.encode_borrowed())
        return self._handle

    def _resolve_path(self) -> Path:
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
            # If the caller has chosen the transport, unsupported memory is refused at the call.
            self._path.target_for(local)
        try:
            return self._begin(self._path or self._resolve_path(), verb, local, offset, timeout)
        except RDMAError as error:
            failure = error
        path = self._path
        if path is None or not path.target.is_over:
            return self._failed(verb, local, failure)
        # A lost connection does not imply that the owner has died: retry once over a new one.
        try:
            return self._begin(self._resolve_path(), verb, local, offset, timeout)
        except RDMAError as error:
            return self._failed(verb, local, error)

    def _failed(self, verb: str, local: _core.Local, error: RDMAError) -> Future[None]:
        record_failed_transfer(error, verb, local.nbytes, self.owner)
        return CompletionFuture.failed(error)

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
        return _DONE if transfer is None else CompletionFuture(transfer)

    def _now(self, do: Callable[[_core.Target | PluginTarget | StagedTarget], Any]) -> Future[Any]:
        try:
            return CompletionFuture.completed(do(self._resolve_path().target))
        except RDMAError as error:
            return CompletionFuture.failed(error)

    def _check(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self._size:
            raise RDMABoundsError(
                f"bytes {offset} to {offset + length} are outside of a buffer of {self._size} bytes"
            )

    def _check_writable(self) -> None:
        if not self._handle.is_writable:
            raise RDMAReadOnlyError(
                f"{self!r} was registered from read-only memory: register writable memory"
            )


def checked_word(number: int) -> int:
    """Return the number.

    Raises:
        RDMABoundsError: It is not an unsigned 64-bit integer.
    """
    if not 0 <= number < 1 << 64:
        raise RDMABoundsError(f"{number} is not an unsigned 64-bit integer")
    return number


def restore(handle: bytes, offset: int, size: int) -> RDMABuffer:
    """Restore a pickled buffer."""
    start_serving()
    return RDMABuffer._of(_core.Handle.decode(handle), size, offset)
