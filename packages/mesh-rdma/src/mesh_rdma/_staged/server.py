"""Copies of this process's memory of devices that others ask for, a piece at a time.

Each question is answered when its piece is copied, which takes a millisecond or so: nothing runs
behind an answer, so who has it knows that nothing is written any more.
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
from mesh_rdma._staged.messages import STAGED, Ask, Op, Status
from mesh_rdma._staged.pinned_memory import PIECE_LEN, Piece, served_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["INLINE_LEN_MAX", "LATE", "answer_staged"]

LATE = "the transfer was not done in time; no byte of it is written any more"

#: What is sent inside of answers: for that a piece is not worth its while.
INLINE_LEN_MAX = 64 << 10
#: Who has not asked for so long is gone, and its pieces are others'.
_PATIENCE_S = 60.0
_WORD_LEN = 8
_WORD_MASK = (1 << 64) - 1


class _Guest:
    """One copy of another process, and its pieces here."""

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.pieces: dict[int, Piece] = {}
        self.copying = 0


class _Owner:
    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._changed = threading.Condition()
        # Words are changed by one at a time: that is what makes it one change.
        self._words = threading.Lock()
        self._guests: dict[bytes, _Guest] = {}

    def answer(self, ask: Ask) -> bytes | None:
        """Does what is asked for; gives None where no piece is free."""
        if ask.op in (Op.END, Op.BREAK):
            self._end(ask.who, ask.op is Op.END)
            return b""
        if ask.op is Op.ROOM:
            driver = _driver()
            with self._piece(ask, driver, driver.active_devices()[0]) as piece:
                return None if piece is None else piece.handle.lend()
        return self._copy(ask)

    def _copy(self, ask: Ask) -> bytes | None:
        is_write = ask.op in (Op.DRAIN, Op.ADD, Op.SWAP)
        # A release waits as long as it is held.
        memory = _core.hold(ask.slot, ask.key, is_write)
        device = memory.device
        if device is None:
            raise RDMATransportError("the memory is the processor's: there is a better way")
        driver = _driver()
        if ask.op is Op.LOOK:
            return b""
        nbytes = _WORD_LEN if ask.op in (Op.ADD, Op.SWAP) else ask.nbytes
        most = INLINE_LEN_MAX if ask.op is Op.FETCH else PIECE_LEN
        if ask.offset + nbytes > memory.nbytes or nbytes > most:
            raise RDMABoundsError(
                f"bytes {ask.offset} to {ask.offset + nbytes} of a buffer of {memory.nbytes} "
                f"bytes: stay inside, and ask for {most} at most"
            )
        there = memory.address + ask.offset
        if ask.op in (Op.ADD, Op.SWAP):
            return self._change(driver, device, there, ask)
        if ask.op is Op.FETCH:
            room = ctypes.create_string_buffer(nbytes)
            copy_now(driver, device, ctypes.addressof(room), there, nbytes)
            return room.raw
        with self._piece(ask, driver, device) as piece:
            if piece is None:
                return None
            if ask.op is Op.FILL:
                copy_now(driver, device, piece.local.address, there, nbytes)
                return piece.handle.lend()
            if ask.limit == 0.0:
                raise RDMATimeout(LATE)
            copy_now(driver, device, there, piece.local.address, nbytes)
            return b""

    def _change(self, driver: CudaDriver, device: int, there: int, ask: Ask) -> bytes:
        if there % _WORD_LEN:
            raise RDMAAlignmentError(
                f"an atomic operation at byte {ask.offset}: it needs eight bytes that begin at a "
                f"multiple of 8"
            )
        word = ctypes.create_string_buffer(_WORD_LEN)
        here = ctypes.addressof(word)
        with self._words:
            copy_now(driver, device, here, there, _WORD_LEN)
            found = int.from_bytes(word.raw, "little")
            wanted = ask.operand
            if ask.op is Op.ADD:
                wanted = (found + ask.operand) & _WORD_MASK
            if ask.op is Op.ADD or found == ask.compare:
                ctypes.memmove(here, wanted.to_bytes(_WORD_LEN, "little"), _WORD_LEN)
                copy_now(driver, device, there, here, _WORD_LEN)
        return found.to_bytes(_WORD_LEN, "little")

    @contextmanager
    def _piece(self, ask: Ask, driver: CudaDriver, device: int) -> Iterator[Piece | None]:
        """Takes the piece of a lane for as long as something is copied to or from it."""
        self._end_deserted()
        with self._changed:
            guest = self._guests.get(ask.who)
            if guest is None:
                if ask.op is Op.DRAIN:
                    # It has been ended since: what is late is not written.
                    raise RDMACancelled("the copy was ended")
                guest = self._guests[ask.who] = _Guest()
            guest.asked = time.monotonic()
            guest.copying += 1
        try:
            piece = guest.pieces.get(ask.lane)
            if piece is None:
                piece = served_pieces.take(driver, device)
                if piece is not None:
                    guest.pieces[ask.lane] = piece
            yield piece
        finally:
            with self._changed:
                guest.copying -= 1
                self._changed.notify_all()

    def _end_deserted(self) -> None:
        before = time.monotonic() - _PATIENCE_S
        with self._changed:
            gone = [who for who, guest in self._guests.items() if guest.asked < before]
        for who in gone:
            self._end(who, is_at_rest=False)

    def _end(self, who: bytes, is_at_rest: bool) -> None:
        """Gives the pieces of a copy back, when nothing is copied to or from them here."""
        with self._changed:
            guest = self._guests.pop(who, None)
            if guest is None:
                return
            while guest.copying:
                self._changed.wait()
        for piece in guest.pieces.values():
            if is_at_rest:
                served_pieces.give_back(piece)
            else:
                served_pieces.discard(piece)


def _driver() -> CudaDriver:
    driver = cuda_driver()
    if driver is None or not driver.active_devices():
        raise RDMATransportError("the owner uses no CUDA device")
    return driver


_owner = _Owner()


def answer_staged(question: bytes) -> bytes:
    """Answers a question about memory of devices of this process."""
    try:
        found = _owner.answer(Ask.unpack(question))
    except CudaError as error:
        return bytes([Status.FAILED]) + encode_error(RDMATransportError(f"staged: {error}"))
    except Exception as error:
        return bytes([Status.FAILED]) + encode_error(error)
    return bytes([Status.BUSY]) if found is None else bytes([Status.DONE]) + found


register_handler(STAGED, answer_staged)
