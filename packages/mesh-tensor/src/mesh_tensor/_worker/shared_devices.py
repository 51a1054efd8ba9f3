"""Whether several processes use one device, which NCCL refuses.

This is common on a workstation: a program for eight GPUs is tried with two processes on one.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["some_share_a_device"]

_UUID_BYTES = 16


def some_share_a_device(store: Store, size: int) -> bool:
    """Return whether two of `size` processes use the same device; the same result in all of them.

    All processes call this function. Each of them makes a constant number of requests.

    Args:
        store: A store that no earlier call of this function has used.
        size: The number of processes.
    """
    uuid = _device_uuid()
    if uuid and store.add(f"device/{uuid}", 1) > 1:
        store.set("device_is_shared", "")
    # Every process has set the key above before the last one sets this key.
    if store.add("device_count", 1) == size:
        store.set("devices_are_known", "")
    store.wait(["devices_are_known"])
    return store.check(["device_is_shared"])


def _device_uuid() -> str | None:
    """Return the identifier of the current device without allocating memory on it.

    The result is None without a device, or if its driver is not NVIDIA's.
    """
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return None
    index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    device, uuid = ctypes.c_int(), (ctypes.c_ubyte * _UUID_BYTES)()
    # `is_available` has initialized the driver.
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    # The second version of this function distinguishes the instances of a divided device (MIG).
    return None if driver.cuDeviceGetUuid_v2(uuid, device) else bytes(uuid).hex()
