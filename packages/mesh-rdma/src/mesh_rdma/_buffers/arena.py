"""Memory that every process of the machine can map, which is the fastest memory to share."""

from __future__ import annotations

from mesh_rdma import _core
from mesh_rdma._errors import RDMABoundsError

__all__ = ["allocate"]


def allocate(nbytes: int) -> memoryview:
    """Allocate zeroed memory in the arena of this process, which local processes can map.

    Other processes of the machine read a buffer registered from this memory, or from any part of
    it, with one copy, or access it without a copy (`RDMABuffer.view`). To create arrays over it,
    use `numpy.frombuffer(memory, dtype)` or `torch.frombuffer(memory, dtype=...)`. The memory is
    freed when nothing references it anymore.

    Args:
        nbytes: The size in bytes. Each allocation begins at a page boundary (4096 bytes).

    Raises:
        RDMABoundsError: `nbytes` is not positive.
        RDMAError: The system does not have enough memory.
    """
    if nbytes <= 0:
        raise RDMABoundsError(f"cannot allocate {nbytes} bytes: pass at least 1")
    return memoryview(_core.Block(nbytes))
