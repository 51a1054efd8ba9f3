"""The owner's side of `staged`: copies device memory for clients, one piece per request.

The response to a request is sent after its piece has been copied, which takes about a millisecond.
No copy runs after a response, so a client that has received it knows that no byte is written later.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mesh_rdma import _core
from mesh_rdma._cuda.copier import copy_now
from mesh_rdma._cuda.driver import CudaDriver, CudaError, cuda_driver
from mesh_rdma._errors import (
    RDMAAlignmentError,
    RDMABoundsError,
    RDMACancelled,
    RDMATimeout,
    RDMATransportError,
)
from mesh_rdma._requests.error_encoding import encode_error
from mesh_rdma._requests.handlers import register_handler
from mesh_rdma._staged.messages import STAGED, Op, StagedRequest, Status
from mesh_rdma._staged.pinned_memory import PIECE_LEN, Piece, served_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["INLINE_LEN_MAX", "LATE", "handle_staged"]

LATE = "the transfer was not done in time; no more bytes of it are written"

#: The maximum number of bytes in a response without a pinned piece.
INLINE_LEN_MAX = 64 << 10
#: The pieces of a client that has sent no request for this long are reclaimed.
_ABANDONED_AFTER_S = 60.0
_WORD_LEN = 8
_WORD_MASK = (1 << 64) - 1


class _ClientCopy:
    """One copy of a client, with its pieces here."""

    def __init__(self) -> None:
        self.requested_at = time.monotonic()
        self.pieces: dict[int, Piece] = {}
        self.copying = 0


class _Owner:
    def __init__(self) -> None:
        self._reset_after_fork()
        os.register_at_fork(after_in_child=self._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._changed = threading.Condition()
        # The lock serializes changes of words, which makes each of them atomic.
        self._words = threading.Lock()
        self._copies: dict[bytes, _ClientCopy] = {}

    def handle(self, request: StagedRequest) -> bytes | None:
        """Handle a request; return None if no piece is free."""
        if request.op in (Op.END, Op.BREAK):
            self._end(request.copy_id, request.op is Op.END)
            return b""
        if request.op is Op.ACQUIRE:
            driver = _driver()
            with self._piece(request, driver, driver.active_devices()[0]) as piece:
                return None if piece is None else piece.handle.encode_borrowed()
        return self._copy(request)

    def _copy(self, request: StagedRequest) -> bytes | None:
        is_write = request.op in (Op.DRAIN, Op.ADD, Op.SWAP)
        # A release of the buffer waits until this is dropped.
        memory = _core.pin_region(request.slot, request.key, is_write)
        device = memory.device
        if device is None:
            raise RDMATransportError("the buffer is in host memory: use another transport")
        driver = _driver()
        if request.op is Op.LOOK:
            return b""
        nbytes = _WORD_LEN if request.op in (Op.ADD, Op.SWAP) else request.nbytes
        most = INLINE_LEN_MAX if request.op is Op.FETCH else PIECE_LEN
        if request.offset + nbytes > memory.nbytes or nbytes > most:
            raise RDMABoundsError(
                f"bytes {request.offset} to {request.offset + nbytes} are outside of a buffer of "
                f"{memory.nbytes} bytes, or more than {most} at once"
            )
        there = memory.address + request.offset
        if request.op in (Op.ADD, Op.SWAP):
            return self._change(driver, device, there, request)
        if request.op is Op.FETCH:
            buffer = ctypes.create_string_buffer(nbytes)
            copy_now(driver, device, ctypes.addressof(buffer), there, nbytes)
            return buffer.raw
        with self._piece(request, driver, device) as piece:
            if piece is None:
                return None
            if request.op is Op.FILL:
                copy_now(driver, device, piece.local.address, there, nbytes)
                return piece.handle.encode_borrowed()
            if request.limit == 0.0:
                raise RDMATimeout(LATE)
            copy_now(driver, device, there, piece.local.address, nbytes)
            return b""

    def _change(self, driver: CudaDriver, device: int, there: int, request: StagedRequest) -> bytes:
        if there % _WORD_LEN:
            raise RDMAAlignmentError(
                f"an atomic operation at byte {request.offset}: it needs eight bytes that begin at "
                f"a multiple of 8"
            )
        word = ctypes.create_string_buffer(_WORD_LEN)
        here = ctypes.addressof(word)
        with self._words:
            copy_now(driver, device, here, there, _WORD_LEN)
            found = int.from_bytes(word.raw, "little")
            wanted = request.operand
            if request.op is Op.ADD:
                wanted = (found + request.operand) & _WORD_MASK
            if request.op is Op.ADD or found == request.compare:
                ctypes.memmove(here, wanted.to_bytes(_WORD_LEN, "little"), _WORD_LEN)
                copy_now(driver, device, there, here, _WORD_LEN)
        return found.to_bytes(_WORD_LEN, "little")

    @contextmanager
    def _piece(
        self, request: StagedRequest, driver: CudaDriver, device: int
    ) -> Iterator[Piece | None]:
        """Provide the piece of a worker during a copy to or from it."""
        self._end_abandoned()
        with self._changed:
            client = self._copies.get(request.copy_id)
            if client is None:
                if request.op is Op.DRAIN:
                    # The copy has already ended, so a late piece is not written.
                    raise RDMACancelled("the copy was cancelled")
                client = self._copies[request.copy_id] = _ClientCopy()
            client.requested_at = time.monotonic()
            client.copying += 1
        try:
            piece = client.pieces.get(request.worker)
            if piece is None:
                piece = served_pieces.acquire(driver, device)
                if piece is not None:
                    client.pieces[request.worker] = piece
            yield piece
        finally:
            with self._changed:
                client.copying -= 1
                self._changed.notify_all()

    def _end_abandoned(self) -> None:
        before = time.monotonic() - _ABANDONED_AFTER_S
        with self._changed:
            gone = [
                copy_id for copy_id, client in self._copies.items() if client.requested_at < before
            ]
        for copy_id in gone:
            self._end(copy_id, is_at_rest=False)

    def _end(self, copy_id: bytes, is_at_rest: bool) -> None:
        """Release the pieces of a copy once no copy to or from them runs here."""
        with self._changed:
            client = self._copies.pop(copy_id, None)
            if client is None:
                return
            while client.copying:
                self._changed.wait()
        for piece in client.pieces.values():
            if is_at_rest:
                served_pieces.release(piece)
            else:
                served_pieces.discard(piece)


def _driver() -> CudaDriver:
    driver = cuda_driver()
    if driver is None or not driver.active_devices():
        raise RDMATransportError("the owner uses no CUDA device")
    return driver


_owner = _Owner()


def handle_staged(request: bytes) -> bytes:
    """Handle a request about device memory of this process."""
    try:
        found = _owner.handle(StagedRequest.unpack(request))
    except CudaError as error:
        return bytes([Status.FAILED]) + encode_error(RDMATransportError(f"staged: {error}"))
    except Exception as error:
        return bytes([Status.FAILED]) + encode_error(error)
    return bytes([Status.BUSY]) if found is None else bytes([Status.DONE]) + found


register_handler(STAGED, handle_staged)
