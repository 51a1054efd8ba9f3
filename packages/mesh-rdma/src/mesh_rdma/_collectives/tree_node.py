"""One place of a tree: it copies a buffer from the place above it, chunk by chunk as they come.

How far it is stands in a word of its arena, which those below it read. When the place above is gone
it waits to be told of another one, and goes on where it was.
"""

from __future__ import annotations

import struct
import threading
import time
from typing import TYPE_CHECKING

from mesh_rdma import _core
from mesh_rdma._errors import RDMACancelled, RDMAError, RDMATimeout, RDMATransportError
from mesh_rdma._operations.pull import Pull, begin_here
from mesh_rdma._operations.server import State, Work, handle_kind
from mesh_rdma._requests.error_encoding import decode_error, encode_error

if TYPE_CHECKING:
    from mesh_core.spi import Completion

__all__ = ["FOLLOW", "GIVE_UP", "SOURCE", "encode_order", "encode_source"]

#: The kind of errand, and what may be asked besides: take another source; fail with an error.
FOLLOW = b"f"
SOURCE = b"n"
GIVE_UP = b"g"

_ORDER = struct.Struct("<QQQB")
_SOURCE = struct.Struct("<QHH")
_HANDLE = struct.Struct("<H")
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.0001, 0.002
#: What stands in the word of a place that gets no more bytes.
_FAILED = (1 << 64) - 1
#: How long somebody may take to find another source.
_ORPHAN_S = 30.0
_LATE = "the transfer was not done in time; no byte of it is written any more"
_CANCELLED = "the transfer was cancelled; no byte of it is written any more"


def encode_source(source: _core.Handle, from_: int, progress: bytes) -> bytes:
    """Makes the bytes that name a source, and where it says how far it is."""
    lent = source.lend()
    return _SOURCE.pack(from_, len(lent), len(progress)) + lent + progress


def encode_order(
    ours: _core.Handle, to: int, length: int, chunk: int, is_followed: bool, source: bytes
) -> bytes:
    """Makes the bytes that begin such an errand."""
    lent = ours.lend()
    head = _ORDER.pack(to, length, chunk, is_followed) + _HANDLE.pack(len(lent))
    return head + lent + source


class _Source:
    """Where bytes come from now."""

    def __init__(self, order: memoryview) -> None:
        from_, source_len, progress_len = _SOURCE.unpack_from(order)
        at = _SOURCE.size
        if len(order) != at + source_len + progress_len:
            raise ValueError("these bytes name no source")
        self.from_ = from_
        self.handle = _core.Handle.borrow(bytes(order[at : at + source_len]))
        progress = bytes(order[at + source_len :])
        self._progress = _core.Handle.borrow(progress) if progress else None
        self._target: _core.Target | None = None
        self._word = bytearray(8)
        self._local = _core.Local(self._word)

    def available(self, length: int, left: float | None) -> int:
        """Gives how many bytes are there by now."""
        if self._progress is None:
            return length
        if self._target is None:
            self._target, refused = self._progress.reach(None)
            if self._target is None:
                raise RDMATransportError(f"no way to {self._progress.owner}: {refused}")
        transfer = self._target.read(self._local, 0, left)
        if transfer is not None:
            transfer.wait(None)
            transfer.outcome()
        count = int.from_bytes(self._word, "little")
        if count == _FAILED:
            raise RDMATransportError(f"{self._progress.owner} has failed to get the bytes itself")
        return min(count, length)


class _Follow(Work):
    """A place of the tree, at work."""

    def __init__(self, limit: float | None, order: memoryview) -> None:
        super().__init__(limit)
        self._to, self._length, self._chunk, is_followed = _ORDER.unpack_from(order)
        at = _ORDER.size
        (length,) = _HANDLE.unpack_from(order, at)
        at += _HANDLE.size
        self._ours = _core.Handle.borrow(bytes(order[at : at + length]))
        if not self._ours.is_ours:
            raise ValueError("a buffer of another process is to be written")
        self._source: _Source | None = _Source(order[at + length :])
        self._changed = threading.Condition()
        self._transfer: Completion[None] | None = None
        self._refusal: RDMAError | None = None
        self._word: memoryview | None = None
        self.is_kept = bool(is_followed)
        if is_followed:
            self._word = memoryview(_core.Block(8)).cast("Q")
            # Held as long as this errand is known.
            self._offered = _core.Handle(_core.Local(self._word))
            self.extra = self._offered.lend()

    def run(self) -> None:
        """Copies until all is there; tells those below where that was in vain."""
        super().run()
        if self.state is State.FAILED and self._word is not None:
            self._word[0] = _FAILED

    def work(self) -> None:
        """Copies until all is there."""
        while self.progress < self._length:
            source = self._source or self._another()
            try:
                self._copy(source)
            except (RDMACancelled, RDMATimeout):
                raise
            except RDMAError as error:
                _, slot, key = self._ours.identity
                if _core.region_of(slot, key) is None:
                    raise
                self._ask_for_another(error)

    def end(self) -> None:
        """Ends it: nothing is written any more when it is done."""
        with self._changed:
            self.is_wanted = False
            transfer = self._transfer
            self._changed.notify_all()
        if transfer is not None:
            transfer.cancel()

    def take_source(self, body: memoryview) -> None:
        """Goes on from another source."""
        source = _Source(body)
        with self._changed:
            self._source = source
            self.extra = b""
            self.state = State.RUNNING
            self._changed.notify_all()

    def give_up(self, body: memoryview) -> None:
        """There is no other source: it fails with what its last one failed with."""
        with self._changed:
            self._refusal = decode_error(bytes(body))
            self._changed.notify_all()

    def _copy(self, source: _Source) -> None:
        pause = _PAUSE_S_MIN
        while self.progress < self._length:
            self._check()
            available = source.available(self._length, self.left())
            if available <= self.progress:
                time.sleep(pause)
                pause = min(pause * 2, _PAUSE_S_MAX)
                continue
            pause = _PAUSE_S_MIN
            length = available - self.progress
            if self._word is not None:
                length = min(length, self._chunk)
            self._pull(source, length)
            self.progress += length
            if self._word is not None:
                self._word[0] = self.progress

    def _pull(self, source: _Source, length: int) -> None:
        from_, to = source.from_ + self.progress, self._to + self.progress
        transfer = begin_here([Pull(source.handle, self._ours, from_, to, length)], self.left())
        with self._changed:
            self._transfer = transfer
            is_wanted = self.is_wanted
        if not is_wanted:
            transfer.cancel()
        while not transfer.wait(5.0):
            if self.is_deserted():
                transfer.cancel()
        transfer.outcome()

    def _check(self) -> None:
        if not self.is_wanted or self.is_deserted():
            raise RDMACancelled(_CANCELLED)
        if self.until is not None and time.monotonic() >= self.until:
            raise RDMATimeout(_LATE)

    def _ask_for_another(self, error: RDMAError) -> None:
        with self._changed:
            self._source = None
            self.extra = encode_error(error)
            self.state = State.WAITING

    def _another(self) -> _Source:
        until = time.monotonic() + _ORPHAN_S
        with self._changed:
            while self._source is None:
                self._check()
                if self._refusal is not None:
                    raise self._refusal
                if time.monotonic() > until:
                    raise decode_error(self.extra)
                left = self.left()
                self._changed.wait(1.0 if left is None else min(left, 1.0))
            return self._source


def _take_source(work: Work, body: memoryview) -> None:
    if isinstance(work, _Follow) and not work.done.is_set():
        work.take_source(body)


def _give_up(work: Work, body: memoryview) -> None:
    if isinstance(work, _Follow):
        work.give_up(body)
        work.done.wait(1.0)


handle_kind(FOLLOW, _Follow, {SOURCE: _take_source, GIVE_UP: _give_up})
