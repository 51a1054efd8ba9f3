"""A node of a spread tree: copies a buffer from its parent, chunk by chunk as chunks arrive.

A node writes its progress to a word of its arena, which its children read. When its parent dies,
it waits until the coordinator sends it another source, and resumes at the same offset.
"""

from __future__ import annotations

import struct
import threading
import time
from typing import TYPE_CHECKING

from mesh_rdma import _core
from mesh_rdma._errors import RDMACancelled, RDMAError, RDMATimeout, RDMATransportError
from mesh_rdma._operations.pull import Pull, begin_local_pulls
from mesh_rdma._operations.server import Operation, State, register_kind
from mesh_rdma._requests.error_encoding import decode_error, encode_error

if TYPE_CHECKING:
    from mesh_core.spi import Completion

__all__ = ["FAIL", "SOURCE", "TREE_NODE", "encode_payload", "encode_source"]

#: The kind of operation, and its commands: copy from another source; fail with an error.
TREE_NODE = b"f"
SOURCE = b"n"
FAIL = b"g"

_PAYLOAD = struct.Struct("<QQQB")
_SOURCE = struct.Struct("<QHH")
_HANDLE = struct.Struct("<H")
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.0001, 0.002
#: The progress word of a node that has failed.
_FAILED = (1 << 64) - 1
#: How long the coordinator may take to find another source.
_ORPHAN_S = 30.0
_LATE = "the transfer was not done in time; no more bytes of it are written"
_CANCELLED = "the transfer was cancelled; no more bytes of it are written"


def encode_source(source: _core.Handle, from_: int, progress: bytes) -> bytes:
    """Encode a source, with the handle of its progress word."""
    encoded = source.encode_borrowed()
    return _SOURCE.pack(from_, len(encoded), len(progress)) + encoded + progress


def encode_payload(
    ours: _core.Handle, to: int, length: int, chunk: int, has_children: bool, source: bytes
) -> bytes:
    """Encode the parameters of a node."""
    encoded = ours.encode_borrowed()
    head = _PAYLOAD.pack(to, length, chunk, has_children) + _HANDLE.pack(len(encoded))
    return head + encoded + source


class _Source:
    """The buffer that a node currently copies from."""

    def __init__(self, payload: memoryview) -> None:
        from_, source_len, progress_len = _SOURCE.unpack_from(payload)
        at = _SOURCE.size
        if len(payload) != at + source_len + progress_len:
            raise ValueError("malformed source")
        self.from_ = from_
        self.handle = _core.Handle.decode_borrowed(bytes(payload[at : at + source_len]))
        progress = bytes(payload[at + source_len :])
        self._progress = _core.Handle.decode_borrowed(progress) if progress else None
        self._target: _core.Target | None = None
        self._word = bytearray(8)
        self._local = _core.Local(self._word)

    def available(self, length: int, left: float | None) -> int:
        """Return how many bytes the source has so far."""
        if self._progress is None:
            return length
        if self._target is None:
            self._target, refused = self._progress.select_target(None)
            if self._target is None:
                raise RDMATransportError(f"no transport to {self._progress.owner}: {refused}")
        transfer = self._target.read(self._local, 0, left)
        if transfer is not None:
            transfer.wait(None)
            transfer.outcome()
        count = int.from_bytes(self._word, "little")
        if count == _FAILED:
            raise RDMATransportError(f"{self._progress.owner} failed to get the bytes itself")
        return min(count, length)


class _TreeNode(Operation):
    """A running node."""

    def __init__(self, limit: float | None, payload: memoryview) -> None:
        super().__init__(limit)
        self._to, self._length, self._chunk, has_children = _PAYLOAD.unpack_from(payload)
        at = _PAYLOAD.size
        (length,) = _HANDLE.unpack_from(payload, at)
        at += _HANDLE.size
        self._ours = _core.Handle.decode_borrowed(bytes(payload[at : at + length]))
        if not self._ours.is_ours:
            raise ValueError("the destination is a buffer of another process")
        self._source: _Source | None = _Source(payload[at + length :])
        self._changed = threading.Condition()
        self._transfer: Completion[None] | None = None
        self._failure: RDMAError | None = None
        self._word: memoryview | None = None
        self.is_kept = bool(has_children)
        if has_children:
            self._word = memoryview(_core.Block(8)).cast("Q")
            # Registered as long as this operation is kept.
            self._progress_handle = _core.Handle(_core.Local(self._word))
            self.extra = self._progress_handle.encode_borrowed()

    def run(self) -> None:
        """Copy all bytes; on failure, mark the progress word for the children."""
        super().run()
        if self.state is State.FAILED and self._word is not None:
            self._word[0] = _FAILED

    def work(self) -> None:
        """Copy all bytes."""
        while self.progress < self._length:
            source = self._source or self._wait_for_source()
            try:
                self._copy(source)
            except (RDMACancelled, RDMATimeout):
                raise
            except RDMAError as error:
                _, slot, key = self._ours.identity
                if _core.region_of(slot, key) is None:
                    raise
                self._request_source(error)

    def end(self) -> None:
        """Cancel the copy: no byte is written after the operation is done."""
        with self._changed:
            self.is_cancelled = True
            transfer = self._transfer
            self._changed.notify_all()
        if transfer is not None:
            transfer.cancel()

    def take_source(self, body: memoryview) -> None:
        """Resume from another source."""
        source = _Source(body)
        with self._changed:
            self._source = source
            self.extra = b""
            self.state = State.RUNNING
            self._changed.notify_all()

    def fail(self, body: memoryview) -> None:
        """Fail with the error of the last source, because no other source is left."""
        with self._changed:
            self._failure = decode_error(bytes(body))
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
        pull = Pull(source.handle, self._ours, from_, to, length)
        transfer = begin_local_pulls([pull], self.left())
        with self._changed:
            self._transfer = transfer
            is_cancelled = self.is_cancelled
        if is_cancelled:
            transfer.cancel()
        while not transfer.wait(5.0):
            if self.is_abandoned():
                transfer.cancel()
        transfer.outcome()

    def _check(self) -> None:
        if self.is_cancelled or self.is_abandoned():
            raise RDMACancelled(_CANCELLED)
        if self.until is not None and time.monotonic() >= self.until:
            raise RDMATimeout(_LATE)

    def _request_source(self, error: RDMAError) -> None:
        with self._changed:
            self._source = None
            self.extra = encode_error(error)
            self.state = State.WAITING

    def _wait_for_source(self) -> _Source:
        until = time.monotonic() + _ORPHAN_S
        with self._changed:
            while self._source is None:
                self._check()
                if self._failure is not None:
                    raise self._failure
                if time.monotonic() > until:
                    raise decode_error(self.extra)
                left = self.left()
                self._changed.wait(1.0 if left is None else min(left, 1.0))
            return self._source


def _take_source(operation: Operation, body: memoryview) -> None:
    if isinstance(operation, _TreeNode) and not operation.done.is_set():
        operation.take_source(body)


def _fail(operation: Operation, body: memoryview) -> None:
    if isinstance(operation, _TreeNode):
        operation.fail(body)
        operation.done.wait(1.0)


register_kind(TREE_NODE, _TreeNode, {SOURCE: _take_source, FAIL: _fail})
