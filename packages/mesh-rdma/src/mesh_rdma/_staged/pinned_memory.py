"""Pieces of memory that devices copy by themselves, and that other processes reach."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from mesh_rdma import _core
from mesh_rdma._cuda.driver import CudaDriver, CudaError
from mesh_rdma._errors import RDMATimeout

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PIECE_LEN", "Piece", "Pieces", "own_pieces", "served_pieces"]

#: How long a piece is: long enough that asking for it is not seen, short enough that two are soon
#: under way, and that who ends a copy does not wait for long.
PIECE_LEN = 4 << 20
#: The most pieces of a pool.
_PIECES_MAX = 12
_PAUSE_S = 0.05


class Piece:
    """One piece, registered for others as any memory.

    Attributes:
        local: Its bytes.
        handle: By which others reach them.
    """

    def __init__(self, driver: CudaDriver, device: int) -> None:
        self.local = _core.Local(_core.Block(PIECE_LEN))
        self.handle = _core.Handle(self.local)
        self._driver, self._device = driver, device
        try:
            driver.lock(device, self.local.address, PIECE_LEN)
            self._is_locked = True
        except CudaError:
            # Only slower: the driver copies it through memory of its own.
            self._is_locked = False

    def drop(self) -> None:
        """Gives the memory back: from now on no process reaches it."""
        target, _ = self.handle.reach("memory")
        if target is not None:
            with contextlib.suppress(RDMATimeout):
                # Where somebody still copies, the memory is kept until nobody does.
                target.release(0.0)
        if self._is_locked:
            self._driver.unlock(self._device, self.local.address)


class Pieces:
    """Pieces that are used again."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child has the parent's registrations no more."""
        self._changed = threading.Condition()
        self._free: list[Piece] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, driver: CudaDriver, device: int) -> Piece | None:
        """Gives one, or None where all are in use."""
        with self._changed:
            if self._free:
                return self._free.pop()
            if self._count == _PIECES_MAX:
                return None
            self._count += 1
        try:
            return Piece(driver, device)
        except BaseException:
            with self._changed:
                self._count -= 1
            raise

    def wait(self, driver: CudaDriver, device: int, check: Callable[[], object]) -> Piece:
        """Gives one; waits until there is one, for as long as `check` does not raise."""
        while True:
            check()
            piece = self.take(driver, device)
            if piece is not None:
                return piece
            with self._changed:
                if not self._free:
                    self._changed.wait(_PAUSE_S)

    def give_back(self, piece: Piece) -> None:
        """Gives one to the next user."""
        with self._changed:
            self._free.append(piece)
            self._changed.notify()

    def discard(self, piece: Piece) -> None:
        """Ends one that somebody may still write to: the next user gets another."""
        piece.drop()
        with self._changed:
            self._count -= 1
            self._changed.notify()


#: For copies that this process makes, and for those that others ask it for. They are apart: a copy
#: that has one of these waits for one of those of another process, and never the other way round.
own_pieces = Pieces()
served_pieces = Pieces()
