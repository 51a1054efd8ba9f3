"""Memory that every process of the machine can map: the fastest to share."""

from __future__ import annotations

from mesh_rdma import _core
from mesh_rdma._errors import RDMABoundsError

__all__ = ["allocate"]


def allocate(nbytes: int) -> memoryview:
    """Takes zeroed memory of this process's arena, which other processes of the machine map.

    A buffer registered from it, or from any part of it, is read with one copy, or seen without any
    (`RDMABuffer.view`). Make arrays of it with `numpy.frombuffer(memory, dtype)` or
    `torch.frombuffer(memory, dtype=...)`; it is free again when nothing uses it any more.

    Args:
        nbytes: How many bytes; each piece of memory begins at a page of 4096 bytes.

    Raises:
        RDMABoundsError: That is no positive number.
        RDMAError: The system has not that much memory.
    """
    if nbytes <= 0:
        raise RDMABoundsError(f"{nbytes} bytes: ask for one at least")
    return memoryview(_core.Block(nbytes))
