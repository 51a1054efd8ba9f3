"""Page-locked pieces of memory, which devices access directly and other processes can reach."""

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

#: The size of a piece. It is large enough to make the cost of a request negligible, and small
#: enough that two pieces are soon in flight and that a cancellation does not take long.
PIECE_LEN = 4 << 20
#: The maximum number of pieces in a pool.
_PIECES_MAX = 12
_PAUSE_S = 0.05


class Piece:
    """One piece of arena memory, which is registered like any other memory.

    Attributes:
        local: The memory of the piece.
        handle: The handle with which other processes access it.
    """

    def __init__(self, driver: CudaDriver, device: int) -> None:
        self.local = _core.Local(_core.Block(PIECE_LEN))
        self.handle = _core.Handle(self.local)
        self._driver, self._device = driver, device
        try:
            driver.lock(device, self.local.address, PIECE_LEN)
            self._is_locked = True
        except CudaError:
            # The copies are only slower: the driver copies through page-locked memory that it owns.
            self._is_locked = False

    def drop(self) -> None:
        """Release the memory; afterwards, no process can access it."""
        target, _ = self.handle.select_target("memory")
        if target is not None:
            with contextlib.suppress(RDMATimeout):
                # If a copy is in progress, the memory is kept until the copy has ended.
                target.release(0.0)
        if self._is_locked:
            self._driver.unlock(self._device, self.local.address)


class Pieces:
    """A pool of reusable pieces."""

    def __init__(self) -> None:
        self._reset_after_fork()
        os.register_at_fork(after_in_child=self._reset_after_fork)

    def _reset_after_fork(self) -> None:
        """Empty the pool; a forked child does not have the registrations of its parent."""
        self._changed = threading.Condition()
        self._free: list[Piece] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def acquire(self, driver: CudaDriver, device: int) -> Piece | None:
        """Return a piece, or None if all are in use."""
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
        """Wait for a free piece and return it, unless `check` raises."""
        while True:
            check()
            piece = self.acquire(driver, device)
            if piece is not None:
                return piece
            with self._changed:
                if not self._free:
                    self._changed.wait(_PAUSE_S)

    def release(self, piece: Piece) -> None:
        """Return a piece to the pool."""
        with self._changed:
            self._free.append(piece)
            self._changed.notify()

    def discard(self, piece: Piece) -> None:
        """Remove a piece that may still be written to, so that it is never used again."""
        piece.drop()
        with self._changed:
            self._count -= 1
            self._changed.notify()


#: One pool for copies of this process, and one for requests of other processes. They are separate
#: to prevent deadlocks: a copy that has a piece of the first pool may wait for a piece of the
#: second pool of another process, but never the other way round.
own_pieces = Pieces()
served_pieces = Pieces()
