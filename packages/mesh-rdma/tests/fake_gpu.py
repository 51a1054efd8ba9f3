"""Device memory without devices: a driver that is built from `fake_cuda.c`, and its memory.

It is loaded under the name of the real driver, so that all users of the driver use the fake one.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sysconfig
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Allocation", "DeviceMemory", "allocate", "begin", "devices", "refusal", "violations"]

_SOURCE = Path(__file__).with_name("fake_cuda.c")
_FOLDER = "FAKE_CUDA"


def refusal() -> str | None:
    """Return the reason why it cannot be built here, or None."""
    if Path("/dev/nvidiactl").exists():
        return "there is a real driver, which its tests are run with"
    if shutil.which(_compiler()[0]) is None:
        return "there is no compiler of C"
    return None


@contextmanager
def devices() -> Iterator[Path]:
    """Build the driver in a new folder, which also contains its memory, and use it in this process.

    Raises:
        AssertionError: An operation was executed that is undefined behavior of a real driver.
    """
    with tempfile.TemporaryDirectory(prefix="fake-cuda-") as name:
        library = f"{name}/libcuda.so.1"
        flags = ["-shared", "-fPIC", "-O1", "-pthread", "-Wl,-soname,libcuda.so.1"]
        subprocess.run([*_compiler(), *flags, "-o", library, str(_SOURCE)], check=True)
        begin(name)
        yield Path(name)
        assert violations(Path(name)) == []


def begin(folder: str) -> None:
    """Use devices in this process, as torch does when the first tensor is created on one."""
    os.environ[_FOLDER] = folder
    if _library() is None:
        ctypes.CDLL(f"{folder}/libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    driver = _used()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0) == 0


def violations(folder: Path) -> list[str]:
    """Return the operations that are undefined behavior of a real driver."""
    written = folder / "violations"
    return written.read_text().splitlines() if written.exists() else []


class _Managed(ctypes.Structure):
    """`DLManagedTensor` with one dimension."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class Allocation:
    """An allocation of the driver, which is freed with its last user."""

    def __init__(self, nbytes: int, device: int = 0, *, is_expandable: bool = False) -> None:
        driver = _used()
        found = ctypes.c_uint64()
        context = ctypes.c_void_p()
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        driver.cuCtxPushCurrent_v2(context)
        make = driver.fake_vmm_alloc if is_expandable else driver.cuMemAlloc_v2
        assert make(ctypes.byref(found), ctypes.c_size_t(nbytes)) == 0
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        self.address, self.device, self._driver = found.value, device, driver

    def __del__(self) -> None:
        self._driver.cuMemFree_v2(ctypes.c_uint64(self.address))


class DeviceMemory:
    """A part of an allocation that supports DLPack, like an array of an array library."""

    def __init__(self, allocation: Allocation, offset: int, nbytes: int) -> None:
        self.allocation = allocation
        self.address = allocation.address + offset
        self.nbytes = nbytes

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.allocation.device

    def __dlpack__(self, *, stream: Any = None) -> Any:
        shape = (ctypes.c_int64 * 1)(self.nbytes)
        managed = _Managed(self.address, 2, self.allocation.device, 1, 1, 8, 1, shape)
        # These objects must live as long as the capsule, which points to them.
        _kept[ctypes.addressof(managed)] = (managed, shape, self)
        return _make_capsule(ctypes.addressof(managed), b"dltensor", _let_go)


def allocate(nbytes: int) -> DeviceMemory:
    """Return memory of the first device, which is not at the beginning of its allocation."""
    return DeviceMemory(Allocation(nbytes + 1024), 512, nbytes)


#: The Python library, with function declarations that no other module changes.
_python = ctypes.PyDLL(None)
_make_capsule = _python.PyCapsule_New
_make_capsule.restype = ctypes.py_object
_make_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_pointer_of = _python.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.c_void_p, ctypes.c_char_p)

_kept: dict[int, Any] = {}


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _let_go(capsule: int) -> None:
    _kept.pop(_pointer_of(capsule, b"dltensor"), None)


def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def _used() -> ctypes.CDLL:
    driver = _library()
    assert driver is not None, "begin() was not called in this process"
    return driver


def _compiler() -> list[str]:
    return (sysconfig.get_config_var("CC") or "cc").split()[:1]
