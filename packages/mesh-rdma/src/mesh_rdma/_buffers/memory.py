"""Access to the memory of buffers and tensors, without importing the library that defines them."""

from __future__ import annotations

import sys
from typing import Any

from mesh_rdma import _core
from mesh_rdma._buffers.dlpack import memory_of_dlpack
from mesh_rdma._buffers.strides import is_dense
from mesh_rdma._errors import RDMAReadOnlyError, RDMATransportError

__all__ = ["Memory", "memory_of", "writable_memory_of"]

#: The types accepted as memory: `bytearray`, `memoryview`, numpy arrays, torch tensors, and any
#: other object that has the buffer protocol or supports DLPack.
Memory = Any


def memory_of(data: Memory) -> _core.Local:
    """Return the memory of an object.

    Raises:
        TypeError: The object is not a supported kind of memory.
        ValueError: The memory is not contiguous.
        RDMATransportError: The memory is on a device that no transport reaches.
    """
    if isinstance(data, _core.Local):
        return data
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return _of_tensor(data)
    try:
        return _core.Local(data)
    except TypeError:
        if hasattr(data, "__dlpack__"):
            return memory_of_dlpack(data)
    kind = type(data).__qualname__
    raise TypeError(
        f"{kind} has no memory to share: pass a buffer (bytearray, memoryview, numpy array), a"
        " torch tensor, or an object that supports DLPack"
    )


def writable_memory_of(data: Memory) -> _core.Local:
    """Return the memory of an object, which must be writable.

    Raises:
        RDMAReadOnlyError: The memory is read-only.
        TypeError: The object is not a supported kind of memory.
        ValueError: The memory is not contiguous.
    """
    local = memory_of(data)
    if not local.is_writable:
        kind = type(data).__qualname__
        raise RDMAReadOnlyError(
            f"{kind} is read-only memory: pass writable memory, such as a bytearray"
        )
    return local


def _of_tensor(tensor: Any) -> _core.Local:
    device: int | None = None
    if tensor.device.type == "cuda":
        device = tensor.device.index
    elif tensor.device.type != "cpu":
        raise RDMATransportError(
            f"no transport supports memory of {tensor.device}: pass tensor.cpu()"
        )
    if not (tensor.is_contiguous() or is_dense(tensor.shape, tensor.stride())):
        raise ValueError("the tensor is not contiguous: pass tensor.contiguous()")
    nbytes = tensor.numel() * tensor.element_size()
    address: int = tensor.data_ptr()
    # A reference to the tensor keeps its storage alive, like a view of the tensor.
    return _core.Local.at(address, nbytes, True, tensor, device)
