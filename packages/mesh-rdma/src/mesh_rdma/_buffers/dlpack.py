"""Memory of objects that support DLPack, but not the buffer protocol."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from mesh_rdma import _core
from mesh_rdma._buffers.strides import is_dense
from mesh_rdma._errors import RDMATransportError

__all__ = ["memory_of_dlpack"]

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3


class _Tensor(ctypes.Structure):
    """`DLTensor` of the DLPack specification, version 0."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


def memory_of_dlpack(data: Any) -> _core.Local:
    """Return the memory of an object that has `__dlpack__`.

    Raises:
        RDMATransportError: The memory is on a device that no transport reaches.
        ValueError: The memory is not contiguous.
    """
    # A capsule that is not consumed releases the memory when it is collected.
    capsule = data.__dlpack__()
    address = _pointer_of(capsule, b"dltensor")
    tensor = _Tensor.from_address(address)
    if tensor.device_type not in (_CPU, _CUDA, _CUDA_HOST):
        raise RDMATransportError(
            f"no transport supports memory of DLPack device {tensor.device_type}: copy it to the"
            " CPU"
        )
    shape = tensor.shape[: tensor.ndim]
    if tensor.strides and not is_dense(shape, tensor.strides[: tensor.ndim]):
        raise ValueError("the memory is not contiguous: copy it first")
    nbytes = math.prod(shape) * tensor.bits * tensor.lanes // 8
    device = tensor.device_id if tensor.device_type == _CUDA else None
    address = (tensor.data or 0) + tensor.byte_offset
    return _core.Local.at(address, nbytes, True, capsule, device)
