"""Memory of a GPU as adapters are given it: exported by its driver as a dma-buf."""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass

#: Load nothing: there is memory of a GPU only where the driver is in use.
LOADED_ONLY = os.RTLD_LAZY | os.RTLD_NOLOAD

#: Numbers of the driver's interface.
MEMORY_TYPE_ATTRIBUTE, MEMORY_TYPE_DEVICE = 2, 2
HANDLE_TYPE_DMABUF = 1


@dataclass
class DmaBuf:
    """Memory of another device: what exports it, and where the range begins in there."""

    descriptor: int
    offset: int

    def close(self) -> None:
        """Closes the descriptor: registrations that were made of it stay."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def dmabuf_of(address: int, length: int) -> DmaBuf | None:
    """Returns the export of a range if it is memory of a GPU, or None.

    None also where the driver cannot export: then the adapter's own driver may know such memory.
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
