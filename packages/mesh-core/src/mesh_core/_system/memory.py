"""Memory of this machine."""

from __future__ import annotations

import mmap
from contextlib import suppress

__all__ = ["available_bytes", "new_memory"]


def available_bytes() -> int:
    """Return how many bytes programs can allocate before the machine runs out of memory."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) << 10
    raise OSError("/proc/meminfo has no line MemAvailable")


def new_memory(size: int) -> memoryview:
    """Return new memory of a number of bytes, aligned for arrays of any type."""
    if not size:
        return memoryview(bytearray())
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    # Kernels without huge pages use small ones, whose first use takes longer.
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
