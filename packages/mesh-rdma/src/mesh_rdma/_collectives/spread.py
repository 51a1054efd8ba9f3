"""One buffer to many, over a tree of hosts; and many to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_core.spi import done_future, future_of
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
    """Copies all of one buffer to the beginning of each of many, whoever owns them.

    Each host gets the bytes over the network once, from another host that has them: those that are
    on a host copy from each other there. Hosts pass on what they have while more still comes. When
    one on the way dies, those behind it go on from another one.

    Args:
        src: Where the bytes are.
        dsts: Where they go.
        timeout: Seconds until it is given up; None is no limit. When the future raises, nothing is
            written any more.

    Raises:
        RDMABoundsError: A destination is too short.
        RDMAReadOnlyError: A destination may not be written.

    The future raises `RDMAIncomplete` if some were not filled; all others are.
    """
    for place, dst in enumerate(dsts):
        if dst.size() < src.size():
            raise RDMABoundsError(
                f"destination {place} has {dst.size()} bytes, the source {src.size()}: "
                f"give a longer one, or a slice of the source"
            )
        dst._check_writable()
    if not dsts or not src.size():
        return done_future(None)
    return future_of(TreeCoordinator(src, dsts, timeout).start())


def collect(
    srcs: Sequence[RDMABuffer],
    dst: RDMABuffer,
    *,
    offsets: Sequence[int] | None = None,
    timeout: float | None = _TIMEOUT_S,
) -> Future[None]:
    """Copies all of many buffers to one, whoever owns them; the owner of the one does it.

    Args:
        srcs: Where the bytes are.
        dst: Where they go.
        offsets: Where in it each goes; one behind the other if left out.
        timeout: Seconds until it is given up; None is no limit.

    Raises:
        RDMABoundsError: They do not fit, or there is not one offset for each.
        RDMAReadOnlyError: The destination may not be written.

    The future raises `RDMAIncomplete` if some could not be read; all others were.
    """
    dst._check_writable()
    if offsets is None:
        offsets = [0]
        for src in srcs[:-1]:
            offsets.append(offsets[-1] + src.size())
    if srcs and len(offsets) != len(srcs):
        raise RDMABoundsError(f"{len(offsets)} offsets of {len(srcs)} sources: give one of each")
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
    return future_of(SettledGroup(parts, len(srcs)))


class _Failed:
    """A transfer that failed before it began."""

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
