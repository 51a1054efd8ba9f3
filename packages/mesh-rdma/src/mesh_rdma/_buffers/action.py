"""Batches of transfers that complete together."""

from __future__ import annotations

import ctypes
import sys
from functools import partial
from typing import TYPE_CHECKING

from mesh_core.spi import CompletionFuture, is_recorded
from mesh_rdma import _core
from mesh_rdma._buffers.buffer import checked_word
from mesh_rdma._buffers.memory import memory_of, writable_memory_of
from mesh_rdma._completions.group import CompletionGroup
from mesh_rdma._completions.task import Task
from mesh_rdma._errors import RDMABoundsError, RDMAError, RDMATransportError
from mesh_rdma._telemetry import record_transfer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from mesh_core import Future
    from mesh_core.spi import Completion
    from mesh_rdma._buffers.buffer import RDMABuffer
    from mesh_rdma._buffers.memory import Memory

__all__ = ["RDMAAction"]

_TIMEOUT_S = 60.0
_WORD = 8


class RDMAAction:
    """A batch of copies and atomic operations on any buffers, submitted and awaited together.

    The operations run concurrently and in no particular order: none of them may write memory that
    another operation of the same action reads or writes. An action can be submitted more than once.

    Example:
        >>> action = RDMAAction().read_remote(here, there).write_remote(there_too, here_too)
        >>> action.submit(timeout=1.0).get()
    """

    __slots__ = ("_changes", "_found", "_steps")

    def __init__(self) -> None:
        self._steps: list[tuple[RDMABuffer, bool, _core.Local]] = []
        self._changes: list[Callable[[float | None], int]] = []
        self._found: list[_core.Local] = []

    def read_remote(self, dst: Memory, src: RDMABuffer) -> Self:
        """Add a copy of all of `src` to the beginning of `dst`.

        Raises:
            RDMABoundsError: `dst` is too short.
            RDMAReadOnlyError: `dst` is read-only.
        """
        local = writable_memory_of(dst)
        if local.nbytes < src.size():
            raise RDMABoundsError(
                f"the destination has {local.nbytes} bytes, but the buffer has {src.size()}: pass a"
                " longer one, or a slice of the buffer"
            )
        self._steps.append((src, False, local.part(0, src.size())))
        return self

    def write_remote(self, dst: RDMABuffer, src: Memory) -> Self:
        """Add a copy of all of `src` to the beginning of `dst`.

        Raises:
            RDMABoundsError: `src` does not fit into `dst`.
            RDMAReadOnlyError: `dst` is read-only.
        """
        dst._check_writable()
        local = memory_of(src)
        if local.nbytes > dst.size():
            raise RDMABoundsError(
                f"the source has {local.nbytes} bytes, but the buffer has {dst.size()}: pass a part"
                " of the source"
            )
        self._steps.append((dst, True, local))
        return self

    def fetch_add(self, src: Memory, dst: RDMABuffer, add: int) -> Self:
        """Add an atomic addition to the first word of `dst`; `src` receives the previous value.

        Args:
            src: At least eight bytes of this process, which receive the previous value in native
                byte order.
            dst: At least eight bytes, beginning at a multiple of eight.
            add: An unsigned 64-bit integer.

        Raises:
            RDMABoundsError: `src` or `dst` is too short, or `add` is not an unsigned 64-bit
                integer.
            RDMAReadOnlyError: `src` or `dst` is read-only.
            RDMATransportError: `src` is memory of a device.
        """
        self._check_word(src, dst, add)
        self._changes.append(lambda timeout: dst.fetch_add(add, timeout=timeout).get())
        return self

    def compare_and_swap(self, src: Memory, dst: RDMABuffer, compare: int, swap: int) -> Self:
        """Add an atomic compare-and-swap of the first word of `dst`.

        Args:
            src: At least eight bytes of this process, which receive the previous value in native
                byte order.
            dst: At least eight bytes, beginning at a multiple of eight.
            compare: The expected value, an unsigned 64-bit integer.
            swap: The new value, an unsigned 64-bit integer.

        Raises:
            RDMABoundsError: `src` or `dst` is too short, or a number is not an unsigned 64-bit
                integer.
            RDMAReadOnlyError: `src` or `dst` is read-only.
            RDMATransportError: `src` is memory of a device.
        """
        self._check_word(src, dst, compare, swap)
        self._changes.append(
            lambda timeout: dst.compare_and_swap(compare, swap, timeout=timeout).get()
        )
        return self

    def __len__(self) -> int:
        return len(self._steps) + len(self._changes)

    def submit(self, *, timeout: float | None = _TIMEOUT_S) -> Future[None]:
        """Start all operations; the future is done when all of them have ended.

        The first operation that fails cancels the others. Once the future has raised, no byte is
        written anymore, and the destinations may be partially written. The future raises the same
        errors as the future of `RDMABuffer.read_into`.

        Args:
            timeout: The limit in seconds; None means no limit.
        """
        native: list[tuple[_core.Target, bool, _core.Local, int]] = []
        parts: list[Completion[None]] = []
        try:
            for buffer, is_write, local in self._steps:
                target = buffer._resolve_path().target_for(local)
                if isinstance(target, _core.Target):
                    native.append((target, is_write, local, buffer._offset))
                else:
                    copy = target.write if is_write else target.read
                    parts.append(copy(local, buffer._offset, timeout))
        except RDMAError as error:
            for part in parts:
                part.cancel()
            return CompletionFuture.failed(error)
        parts += [
            Task(partial(_change, change, found, timeout), _no_cancellation).start()
            for change, found in zip(self._changes, self._found, strict=True)
        ]
        if native or not parts:
            parts.append(_core.submit(native, timeout))
        whole = parts[0] if len(parts) == 1 else CompletionGroup(parts)
        if is_recorded():
            nbytes = sum(local.nbytes for _, _, local in self._steps) + _WORD * len(self._changes)
            record_transfer(whole, "action", nbytes)
        return CompletionFuture(whole)

    def _check_word(self, src: Memory, dst: RDMABuffer, *numbers: int) -> None:
        found = writable_memory_of(src)
        if found.device is not None:
            raise RDMATransportError(
                "the old value is written to host memory: pass eight bytes of host memory"
            )
        if found.nbytes < _WORD:
            raise RDMABoundsError(f"the old value has {_WORD} bytes, not {found.nbytes}")
        dst._check_writable()
        dst._check(0, _WORD)
        for number in numbers:
            checked_word(number)
        self._found.append(found.part(0, _WORD))


def _change(
    change: Callable[[float | None], int], found: _core.Local, timeout: float | None
) -> None:
    word = change(timeout).to_bytes(_WORD, sys.byteorder)
    ctypes.memmove(found.address, word, _WORD)


def _no_cancellation() -> None:
    """Do nothing: an atomic operation cannot be interrupted, but it has a time limit."""
