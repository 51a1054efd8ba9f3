"""Copies of device memory through host memory, piece by piece.

The process that has the device memory copies pieces of it to or from page-locked memory, which the
other side accesses over the best built-in transport. Two pieces are in flight at a time: while a
device copies one of them, the other one is transferred between the processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import time
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from mesh_rdma import _core
from mesh_rdma._completions.completion import ThreadedCompletion
from mesh_rdma._completions.thread_pool import run_in_thread
from mesh_rdma._cuda.copier import copy_now, record_stream_event
from mesh_rdma._cuda.driver import require_driver
from mesh_rdma._errors import (
    RDMACancelled,
    RDMAError,
    RDMAPeerDied,
    RDMATimeout,
    RDMATransportError,
)
from mesh_rdma._requests.error_encoding import decode_error
from mesh_rdma._staged.messages import STAGED, Op, StagedRequest, Status
from mesh_rdma._staged.pinned_memory import PIECE_LEN, Piece, own_pieces
from mesh_rdma._staged.server import INLINE_LEN_MAX, LATE, handle_staged

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DeviceBuffer", "StagedTarget"]

#: The number of pieces of one copy that are in flight.
_WORKERS = 2
#: How long a process may take to respond if the copy has no time limit.
_RESPONSE_S = 30.0
#: How long the owner may take to confirm that no byte is written anymore.
_GRACE_S = 1.0
#: The pause before a retry when the owner has no piece free.
_PAUSE_S = 0.001
_CANCELLED = "the transfer was cancelled; no more bytes of it are written"


class DeviceBuffer:
    """A buffer in device memory, with all operations except copies, which the owner executes."""

    def __init__(self, handle: _core.Handle) -> None:
        self.handle = handle
        _, self._slot, self._key = handle.identity
        self._target = handle.anchor()

    @property
    def is_over(self) -> bool:
        """Whether the connection to the owner has ended."""
        return self._target.is_over

    def check(self) -> None:
        """Check that the owner can copy the buffer.

        Raises:
            RDMAError: The owner cannot copy it, or has died.
        """
        self.send(StagedRequest(Op.LOOK, self._slot, self._key), _RESPONSE_S)

    def release(self, timeout: float | None) -> None:
        """Make the owner release the registration."""
        self._target.release(timeout)

    def view(self, offset: int, nbytes: int) -> _core.View:
        """Raise an error, because the processor cannot access the memory.

        Raises:
            RDMATransportError: Always.
        """
        raise RDMATransportError(
            "device memory cannot be mapped on the host: copy it with read_into"
        )

    def fetch_add(self, offset: int, add: int, timeout: float | None) -> int:
        """Add to a word, atomically with respect to other changes through handles."""
        return self._change(Op.ADD, offset, add, 0, timeout)

    def compare_and_swap(self, offset: int, compare: int, swap: int, timeout: float | None) -> int:
        """Compare and swap a word, atomically with respect to other changes through handles."""
        return self._change(Op.SWAP, offset, swap, compare, timeout)

    def make_request(self, op: Op, offset: int = 0, nbytes: int = 0, **more: Any) -> StagedRequest:
        """Make a request about the buffer."""
        return StagedRequest(op, self._slot, self._key, offset, nbytes, **more)

    def send(self, request: StagedRequest, timeout: float) -> bytes | None:
        """Send a request to the owner; return None if it has no piece free.

        Raises:
            RDMAError: The request failed, or the owner has died or did not respond in time.
        """
        if self.handle.is_ours:
            response = handle_staged(request.pack())
        else:
            response = self.handle.exchange(STAGED, request.pack(), timeout)
        if response[0] == Status.FAILED:
            raise decode_error(response[1:])
        return response[1:] if response[0] == Status.DONE else None

    def _change(
        self, op: Op, offset: int, operand: int, compare: int, timeout: float | None
    ) -> int:
        if timeout == 0:
            raise RDMATimeout(LATE)
        request = self.make_request(op, offset, operand=operand, compare=compare)
        found = self.send(request, _RESPONSE_S if timeout is None else timeout)
        assert found is not None
        return int.from_bytes(found, "little")


class StagedTarget:
    """A buffer where at least one side is device memory; the counterpart of `_core.Target`.

    Args:
        fallback: The built-in target of the buffer, or its `DeviceBuffer` if it is device memory.
    """

    transport = STAGED

    def __init__(self, fallback: _core.Target | DeviceBuffer) -> None:
        self._fallback = fallback

    @property
    def is_over(self) -> bool:
        """Whether this target is no longer usable; a new one may be."""
        return self._fallback.is_over

    def read(self, local: _core.Local, offset: int, timeout: float | None) -> _Staging:
        """Copy from the buffer."""
        return _Staging(self._fallback, local, offset, False, timeout).start()

    def write(self, local: _core.Local, offset: int, timeout: float | None) -> _Staging:
        """Copy to the buffer."""
        return _Staging(self._fallback, local, offset, True, timeout).start()

    def fetch_add(self, offset: int, add: int, timeout: float | None) -> int:
        """Atomically add to a word."""
        return self._fallback.fetch_add(offset, add, timeout)

    def compare_and_swap(self, offset: int, compare: int, swap: int, timeout: float | None) -> int:
        """Atomically compare and swap a word."""
        return self._fallback.compare_and_swap(offset, compare, swap, timeout)

    def release(self, timeout: float | None) -> None:
        """Make the owner release the registration."""
        self._fallback.release(timeout)

    def view(self, offset: int, nbytes: int) -> _core.View:
        """Map a range for a view; only host memory supports that."""
        return self._fallback.view(offset, nbytes)


class _Staging(ThreadedCompletion):
    """One copy, as a `mesh_core.spi.Completion`; its workers take the pieces in turn."""

    def __init__(
        self,
        remote: _core.Target | DeviceBuffer,
        local: _core.Local,
        offset: int,
        is_write: bool,
        timeout: float | None,
    ) -> None:
        super().__init__()
        if timeout is not None and not 0 <= timeout < math.inf:
            raise ValueError(f"timeout {timeout} is not a finite number of seconds from 0 up")
        self._remote = remote
        self._local = local
        self._offset = offset
        self._is_write = is_write
        self._until = None if timeout is None else time.monotonic() + timeout
        self._copy_id = os.urandom(16)
        self._parts: Iterator[int] = iter(range(0, local.nbytes, PIECE_LEN))
        self._transfers: set[_core.Transfer] = set()
        self._failed: BaseException | None = None
        self._workers = 0
        #: Whether pieces of the owner have been requested.
        self._has_pieces = False
        #: Whether the owner may still copy from one of its pieces to the buffer.
        self._is_draining = False

    def start(self) -> _Staging:
        """Start the copy."""
        if self._until is not None and self._until <= time.monotonic():
            self._settle(RDMATimeout(LATE))
            return self
        self._driver = None if self._local.device is None else require_driver()
        if self._driver is not None:
            assert self._local.device is not None
            self._stream_event = record_stream_event(self._driver, self._local.device)
        count = -(-self._local.nbytes // PIECE_LEN)
        self._workers = max(min(_WORKERS, count), 1)
        for worker in range(self._workers):
            run_in_thread(partial(self._run, worker))
        return self

    def cancel(self) -> bool:
        """Cancel the copy; after this returns, no byte is written by it."""
        was_done = self._done.is_set()
        self._fail(RDMACancelled(_CANCELLED))
        self._done.wait()
        return not was_done and isinstance(self._error, RDMACancelled)

    def _run(self, worker: int) -> None:
        piece: Piece | None = None
        try:
            if self._driver is not None:
                device = self._stream_event.device
                self._driver.wait_for(*self._stream_event)
                piece = own_pieces.wait(self._driver, device, self._left)
            targets: dict[bytes, _core.Target] = {}
            while (at := self._next()) is not None:
                nbytes = min(PIECE_LEN, self._local.nbytes - at)
                if self._is_write:
                    self._put(worker, targets, piece, at, nbytes)
                else:
                    self._get(worker, targets, piece, at, nbytes)
        except Exception as error:
            self._fail(error)
        if piece is not None:
            own_pieces.release(piece)
        with self._lock:
            self._workers -= 1
            is_last = not self._workers
        if is_last:
            self._finish()

    def _get(
        self,
        worker: int,
        targets: dict[bytes, _core.Target],
        piece: Piece | None,
        at: int,
        nbytes: int,
    ) -> None:
        """Copy one part from the buffer."""
        remote, offset = self._remote, self._offset + at
        if isinstance(remote, DeviceBuffer) and self._local.nbytes <= INLINE_LEN_MAX:
            found = self._send(remote.make_request(Op.FETCH, offset, nbytes))
            self._left()
            buffer = ctypes.create_string_buffer(found, nbytes)
            self._copy_to_local(ctypes.addressof(buffer), at, nbytes)
            return
        target: _core.Target
        if isinstance(remote, DeviceBuffer):
            self._has_pieces = True
            encoded = self._send(
                remote.make_request(Op.FILL, offset, nbytes, copy_id=self._copy_id, worker=worker)
            )
            target, offset = _cached_target(targets, encoded), 0
        else:
            target = remote
        if piece is None:
            self._transfer(target, self._local.part(at, nbytes), offset)
        else:
            self._transfer(target, piece.local.part(0, nbytes), offset)
            self._left()
            self._copy_to_local(piece.local.address, at, nbytes)

    def _put(
        self,
        worker: int,
        targets: dict[bytes, _core.Target],
        piece: Piece | None,
        at: int,
        nbytes: int,
    ) -> None:
        """Copy one part to the buffer."""
        remote, offset = self._remote, self._offset + at
        source = self._local.part(at, nbytes)
        if piece is not None:
            assert self._driver is not None
            here = piece.local.address
            copy_now(self._driver, self._stream_event.device, here, source.address, nbytes)
            source = piece.local.part(0, nbytes)
        if not isinstance(remote, DeviceBuffer):
            self._transfer(remote, source, offset)
            return
        self._has_pieces = True
        encoded = self._send(remote.make_request(Op.ACQUIRE, copy_id=self._copy_id, worker=worker))
        self._transfer(_cached_target(targets, encoded), source, 0)
        left = self._left()
        more = {"copy_id": self._copy_id, "worker": worker, "limit": -1.0 if left is None else left}
        self._is_draining = True
        self._send(remote.make_request(Op.DRAIN, offset, nbytes, **more))

    def _copy_to_local(self, from_: int, at: int, nbytes: int) -> None:
        """Copy a part to its place in the local memory."""
        to = self._local.address + at
        if self._driver is None:
            ctypes.memmove(to, from_, nbytes)
        else:
            copy_now(self._driver, self._stream_event.device, to, from_, nbytes)

    def _send(self, request: StagedRequest) -> bytes:
        """Send a request to the owner until it has a piece free."""
        assert isinstance(self._remote, DeviceBuffer)
        while True:
            left = self._left()
            found = self._remote.send(request, _RESPONSE_S if left is None else left)
            if found is not None:
                return found
            time.sleep(_PAUSE_S)

    def _transfer(self, target: _core.Target, local: _core.Local, offset: int) -> None:
        """Copy between host memory here and host memory of the owner, and wait."""
        begin = target.write if self._is_write else target.read
        transfer = begin(local, offset, self._left())
        if transfer is None:
            return
        with self._lock:
            self._transfers.add(transfer)
            is_over = self._failed is not None
        if is_over:
            transfer.cancel()
        try:
            transfer.wait(None)
            transfer.outcome()
        finally:
            with self._lock:
                self._transfers.discard(transfer)

    def _next(self) -> int | None:
        with self._lock:
            return next(self._parts, None) if self._failed is None else None

    def _left(self) -> float | None:
        """Return the seconds until the deadline, or None if there is no limit.

        Raises:
            RDMAError: The deadline has passed, or the copy has failed or was cancelled.
        """
        if self._failed is not None:
            raise copy(self._failed)
        if self._until is None:
            return None
        left = self._until - time.monotonic()
        if left <= 0:
            raise RDMATimeout(LATE)
        return left

    def _fail(self, error: BaseException) -> None:
        """Record the first failure and cancel the transfers in progress."""
        with self._lock:
            if self._failed is None:
                # The traceback is dropped, because it would keep the objects of its frames alive.
                self._failed = error.with_traceback(None)
            transfers = list(self._transfers)
        for transfer in transfers:
            transfer.cancel()

    def _finish(self) -> None:
        """Release all resources and settle the completion."""
        if self._driver is not None:
            with contextlib.suppress(RDMAError):
                self._stream_event.release()
        # Drop these references first: a waiter may immediately reuse the memory and the buffer.
        remote = self._remote
        del self._local, self._remote
        anchor = remote if isinstance(remote, DeviceBuffer) and self._has_pieces else None
        error = self._failed
        if anchor is not None:
            request = anchor.make_request(
                Op.END if error is None else Op.BREAK, copy_id=self._copy_id
            )
            if error is None or not self._is_draining:
                run_in_thread(partial(_end, anchor, request))
            elif not _end(anchor, request):
                error = _unconfirmed(error, anchor.handle.owner)
        del remote, anchor
        self._settle(error)


def _end(anchor: DeviceBuffer, request: StagedRequest) -> bool:
    """Release the pieces of the owner; return whether it has confirmed that."""
    try:
        anchor.send(request, _GRACE_S)
    except RDMAPeerDied:
        return True
    except RDMAError:
        return False
    return True


def _unconfirmed(error: BaseException, owner: str) -> BaseException:
    if not isinstance(error, (RDMATimeout, RDMACancelled)):
        return error
    how = "not done in time" if isinstance(error, RDMATimeout) else "cancelled"
    return type(error)(
        f"the transfer was {how}, and {owner} does not answer: what had reached it may still be "
        f"written when it resumes"
    )


def _cached_target(targets: dict[bytes, _core.Target], encoded: bytes) -> _core.Target:
    """Find the best built-in transport to a piece of the owner; cached in `targets`."""
    target = targets.get(encoded)
    if target is None:
        handle = _core.Handle.decode_borrowed(encoded)
        target, refused = handle.select_target(None)
        if target is None:
            reasons = "; ".join(f"{one}: {why}" for one, why in refused)
            raise RDMATransportError(f"no transport to {handle.owner}: {reasons}")
        targets[encoded] = target
    return target
