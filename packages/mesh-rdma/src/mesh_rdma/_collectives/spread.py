"""Copies from one buffer to many, over a tree of hosts, and from many buffers to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_core.spi import CompletionFuture
from mesh_rdma._collectives.tree_coordinator import TreeCoordinator
from mesh_rdma._completions.settled_group import SettledGroup
from mesh_rdma._errors import RDMABoundsError, RDMAError
from mesh_rdma._operations.pull import Pull
from mesh_rdma._operations.remote_operation import begin_pulls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core import Future
    from mesh_core.spi import Completion
    from mesh_rdma._buffers.buffer import RDMABuffer

__all__ = ["collect", "spread"]

_TIMEOUT_S = 60.0


def spread(
    src: RDMABuffer, dsts: Sequence[RDMABuffer], *, timeout: float | None = _TIMEOUT_S
) -> Future[None]:
    """Copy all of one buffer to the beginning of each of many buffers, which any process may own.

    Each host receives the data over the network once, from another host that has it; processes on
    the same host copy from each other. Hosts forward data while more is still arriving. If a
    process that forwards data dies, its successors continue from another source.

    The future raises `RDMAIncomplete` if some destinations were not filled; all others were.

    Args:
        src: The source buffer.
        dsts: The destination buffers.
        timeout: The limit in seconds; None means no limit. Once the future has raised, no byte is
            written anymore.

    Raises:
        RDMABoundsError: A destination is too short.
        RDMAReadOnlyError: A destination is read-only.
    """
    for place, dst in enumerate(dsts):
        if dst.size() < src.size():
            raise RDMABoundsError(
                f"destination {place} has {dst.size()} bytes, but the source has {src.size()}: pass"
                " a longer one, or a slice of the source"
            )
        dst._check_writable()
    if not dsts or not src.size():
        return CompletionFuture.completed(None)
    return CompletionFuture(TreeCoordinator(src, dsts, timeout).start())


def collect(
    srcs: Sequence[RDMABuffer],
    dst: RDMABuffer,
    *,
    offsets: Sequence[int] | None = None,
    timeout: float | None = _TIMEOUT_S,
) -> Future[None]:
    """Copy all of many buffers into one; the owner of the destination does the copies.

    The future raises `RDMAIncomplete` if some sources could not be read; all others were.

    Args:
        srcs: The source buffers, which any process may own.
        dst: The destination buffer.
        offsets: The offset of each source in `dst`, in bytes; by default, the sources are
            concatenated.
        timeout: The limit in seconds; None means no limit.

    Raises:
        RDMABoundsError: The sources do not fit, or the numbers of offsets and of sources
            differ.
        RDMAReadOnlyError: The destination is read-only.
    """
    dst._check_writable()
    if offsets is None:
        offsets = [0]
        for src in srcs[:-1]:
            offsets.append(offsets[-1] + src.size())
    if srcs and len(offsets) != len(srcs):
        raise RDMABoundsError(
            f"got {len(offsets)} offsets for {len(srcs)} sources: pass one for each"
        )
    for src, offset in zip(srcs, offsets, strict=False):
        dst._check(offset, src.size())
    parts: list[tuple[Completion[None], Sequence[int]]] = []
    for place, (src, offset) in enumerate(zip(srcs, offsets, strict=False)):
        if not src.size():
            continue
        pull = Pull(src._handle, dst._handle, src._offset, dst._offset + offset, src.size())
        try:
            parts += [(part, (place,)) for part in begin_pulls([pull], timeout)]
        except RDMAError as error:
            parts.append((_Failed(error), (place,)))
    return CompletionFuture(SettledGroup(parts, len(srcs)))


class _Failed:
    """A transfer that failed before it started."""

    def __init__(self, error: RDMAError) -> None:
        self._error = error

    def wait(self, timeout: float | None) -> bool:
        return True

    def is_done(self) -> bool:
        return True

    def outcome(self) -> None:
        raise self._error

    def cancel(self) -> bool:
        return False

    def when_done(self, callback: Callable[[], object]) -> None:
        callback()
