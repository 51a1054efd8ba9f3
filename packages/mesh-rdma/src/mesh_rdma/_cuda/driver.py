"""The NVIDIA GPU driver: its functions and its errors.

The module uses the driver library that the program has already loaded, for example through torch.
It neither loads a library nor initializes a device.
"""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from mesh_rdma._errors import RDMATransportError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NOT_IN_USE", "Allocation", "CudaDriver", "CudaError", "cuda_driver", "require_driver"]

NOT_IN_USE = "this process does not use CUDA"

_HANDLE_LEN = 64
_UUID_LEN = 16

_LOADED_ONLY = os.RTLD_LAZY | os.RTLD_NOLOAD

# Constants of the driver API.
_BUFFER_ID = 7
_STREAM_NON_BLOCKING = 1
_EVENT_BLOCKING_SYNC, _EVENT_DISABLE_TIMING = 1, 2
_LAZY_ENABLE_PEER_ACCESS = 1
_HOST_REGISTER_PORTABLE = 1


class _Handle(ctypes.Structure):
    """`CUipcMemHandle`, which is passed by value."""

    _fields_ = (("reserved", c_char * _HANDLE_LEN),)


#: The argument types of each function; all functions return a `CUresult`.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGetUuid": (c_void_p, c_int),
    "cuDevicePrimaryCtxGetState": (c_int, POINTER(c_uint), POINTER(c_int)),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuMemGetAddressRange_v2": (POINTER(c_uint64), POINTER(c_size_t), c_uint64),
    "cuIpcGetMemHandle": (POINTER(_Handle), c_uint64),
    "cuIpcOpenMemHandle_v2": (POINTER(c_uint64), _Handle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuMemcpyAsync": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
}


class CudaError(RDMATransportError):
    """A driver call failed.

    Attributes:
        code: The error code of the driver.
    """

    def __init__(self, words: str, code: int = 0) -> None:
        super().__init__(words)
        self.code = code


class Allocation(NamedTuple):
    """A memory allocation of the driver, which may contain many tensors.

    Attributes:
        base: The address of the allocation.
        nbytes: The size in bytes.
        number: The id of the allocation, which is unique in this process, even after it is freed.
    """

    base: int
    nbytes: int
    number: int


class CudaDriver:
    """The driver, with the primary context of each device in use."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._contexts: dict[int, int] = {}
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = c_int

    def device_count(self) -> int:
        """Return the number of visible devices; 0 if the driver is not initialized."""
        count = c_int(0)
        return count.value if self._library.cuDeviceGetCount(byref(count)) == 0 else 0

    def active_devices(self) -> list[int]:
        """Return the devices that this process uses."""
        return [device for device in range(self.device_count()) if self.is_active(device)]

    def is_active(self, device: int) -> bool:
        """Return whether this process uses a device."""
        flags, is_active = c_uint(0), c_int(0)
        failed = self._library.cuDevicePrimaryCtxGetState(device, byref(flags), byref(is_active))
        return not failed and bool(is_active.value)

    def uuid_of(self, device: int) -> bytes:
        """Return the UUID of a device, which is the same in all processes.

        Raises:
            CudaError: The device does not exist.
        """
        found = ctypes.create_string_buffer(_UUID_LEN)
        self._call("cuDeviceGetUuid", found, device)
        return found.raw

    def allocation_of(self, device: int, address: int) -> Allocation:
        """Return the allocation that contains an address of a device.

        Raises:
            CudaError: The address is not in an allocation.
        """
        base, nbytes = c_uint64(0), c_size_t(0)
        number = c_uint64(0)
        with self._on(device):
            self._call("cuMemGetAddressRange_v2", byref(base), byref(nbytes), address)
            self._call("cuPointerGetAttribute", byref(number), _BUFFER_ID, address)
        return Allocation(base.value, nbytes.value, number.value)

    def export(self, device: int, base: int) -> bytes:
        """Return a handle with which another process can open an allocation.

        Raises:
            CudaError: This kind of allocation cannot be shared through CUDA IPC.
        """
        handle = _Handle()
        with self._on(device):
            self._call("cuIpcGetMemHandle", byref(handle), base)
        return bytes(handle)

    def open(self, device: int, exported: bytes) -> int:
        """Map an allocation of another process for a device; return its address.

        Raises:
            CudaError: The allocation was freed or is already mapped, or the device cannot access
                it.
        """
        base = c_uint64(0)
        handle = _Handle.from_buffer_copy(exported)
        with self._on(device):
            self._call("cuIpcOpenMemHandle_v2", byref(base), handle, _LAZY_ENABLE_PEER_ACCESS)
        return base.value

    def close(self, device: int, base: int) -> None:
        """Unmap an allocation that `open` has mapped.

        Raises:
            CudaError: The allocation is not mapped.
        """
        with self._on(device):
            self._call("cuIpcCloseMemHandle", base)

    def new_stream(self, device: int) -> int:
        """Create a stream that does not synchronize with the default stream."""
        stream = c_void_p()
        with self._on(device):
            self._call("cuStreamCreate", byref(stream), _STREAM_NON_BLOCKING)
        return stream.value or 0

    def destroy_stream(self, device: int, stream: int) -> None:
        """Destroy a stream after the work on it has completed."""
        with self._on(device):
            self._call("cuStreamDestroy_v2", stream)

    def new_event(self, device: int) -> int:
        """Create an event; a thread that waits for it sleeps instead of polling."""
        event = c_void_p()
        with self._on(device):
            flags = _EVENT_BLOCKING_SYNC | _EVENT_DISABLE_TIMING
            self._call("cuEventCreate", byref(event), flags)
        return event.value or 0

    def destroy_event(self, device: int, event: int) -> None:
        """Destroy an event."""
        with self._on(device):
            self._call("cuEventDestroy_v2", event)

    def record(self, device: int, event: int, stream: int) -> None:
        """Record an event, which occurs after all work that is now on the stream."""
        with self._on(device):
            self._call("cuEventRecord", event, stream)

    def wait_for(self, device: int, event: int) -> None:
        """Wait until an event has occurred.

        Raises:
            CudaError: Work that precedes the event failed.
        """
        with self._on(device):
            self._call("cuEventSynchronize", event)

    def follow(self, device: int, stream: int, event: int) -> None:
        """Make a stream wait for an event before it continues."""
        with self._on(device):
            self._call("cuStreamWaitEvent", stream, event, 0)

    def copy(self, device: int, stream: int, to: int, from_: int, nbytes: int) -> None:
        """Start a copy; either side may be memory of any device, or host memory."""
        with self._on(device):
            self._call("cuMemcpyAsync", to, from_, nbytes, stream)

    def lock(self, device: int, address: int, nbytes: int) -> None:
        """Page-lock host memory, so that devices can access it directly."""
        with self._on(device):
            self._call("cuMemHostRegister_v2", address, nbytes, _HOST_REGISTER_PORTABLE)

    def unlock(self, device: int, address: int) -> None:
        """Undo `lock`."""
        with self._on(device):
            self._call("cuMemHostUnregister", address)

    @contextmanager
    def _on(self, device: int) -> Iterator[None]:
        """Make the primary context of a device current; torch uses the same context."""
        with self._lock:
            context = self._contexts.get(device)
            if context is None:
                found = c_void_p()
                self._call("cuDevicePrimaryCtxRetain", byref(found), device)
                context = self._contexts[device] = found.value or 0
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._library.cuCtxPopCurrent_v2(byref(c_void_p()))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(f"{name} failed: {self._words(code)}", code)

    def _words(self, code: int) -> str:
        name, text = c_char_p(), c_char_p()
        self._library.cuGetErrorName(code, byref(name))
        self._library.cuGetErrorString(code, byref(text))
        known = [part.value.decode() for part in (name, text) if part.value]
        return ", ".join(known) or f"error {code}"


_lock = threading.Lock()
_driver: CudaDriver | None = None


def cuda_driver() -> CudaDriver | None:
    """Return the driver if this process uses it, or None."""
    global _driver
    with _lock:
        if _driver is None:
            try:
                library = ctypes.CDLL("libcuda.so.1", mode=_LOADED_ONLY)
                _driver = CudaDriver(library)
            except (OSError, AttributeError):
                # The library is not loaded, or too old to have the required functions.
                return None
        return _driver


def require_driver() -> CudaDriver:
    """Return the driver.

    Raises:
        RDMATransportError: This process does not use the driver.
    """
    driver = cuda_driver()
    if driver is None:
        raise RDMATransportError(NOT_IN_USE)
    return driver


def _reset_after_fork() -> None:
    """Drop the driver in a forked child: contexts of the parent do not work there."""
    global _driver, _lock
    _lock = threading.Lock()
    _driver = None


os.register_at_fork(after_in_child=_reset_after_fork)
