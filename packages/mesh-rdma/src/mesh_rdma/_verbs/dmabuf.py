"""GPU memory for network adapters, exported by the GPU driver as a dma-buf."""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass

#: Do not load the library: a process has GPU memory only if the driver is loaded.
LOADED_ONLY = os.RTLD_LAZY | os.RTLD_NOLOAD

#: Constants of the driver API.
MEMORY_TYPE_ATTRIBUTE, MEMORY_TYPE_DEVICE = 2, 2
HANDLE_TYPE_DMABUF = 1


@dataclass
class DmaBuf:
    """An exported range of memory of another device."""

    descriptor: int
    offset: int

    def close(self) -> None:
        """Close the descriptor; existing registrations remain valid."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def dmabuf_of(address: int, length: int) -> DmaBuf | None:
    """Return the export of a range if it is GPU memory, otherwise None.

    It also returns None if the driver cannot export; the driver of the adapter may then support
    such memory directly.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=LOADED_ONLY)
    except OSError:
        return None
    kind = ctypes.c_uint(0)
    failed = driver.cuPointerGetAttribute(
        ctypes.byref(kind), MEMORY_TYPE_ATTRIBUTE, ctypes.c_uint64(address)
    )
    if failed or kind.value != MEMORY_TYPE_DEVICE:
        return None
    begin = address - address % mmap.PAGESIZE
    end = -(-(address + length) // mmap.PAGESIZE) * mmap.PAGESIZE
    descriptor = ctypes.c_int(-1)
    failed = driver.cuMemGetHandleForAddressRange(
        ctypes.byref(descriptor),
        ctypes.c_uint64(begin),
        ctypes.c_size_t(end - begin),
        HANDLE_TYPE_DMABUF,
        ctypes.c_ulonglong(0),
    )
    return None if failed else DmaBuf(descriptor.value, address - begin)
