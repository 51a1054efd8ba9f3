"""GPU memory is registered by its export, host memory by its address."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import pytest
from verbs_fabric import Fabric

from mesh_rdma._verbs import dmabuf
from mesh_rdma._verbs.binding import Access
from mesh_rdma._verbs.registrations import Registrations

#: The address range of GPU memory in the driver of this test.
BEGIN, END = 0x7F00_0000_0000, 0x7F00_0010_0000


class Driver:
    """The used functions of the GPU driver, which exports any file as its memory."""

    def __init__(self, path: Path, is_able: bool) -> None:
        self.path, self.is_able = path, is_able
        self.exported: list[tuple[int, int]] = []

    def __call__(self, *_: object, **__: object) -> Driver:
        return self

    def cuPointerGetAttribute(self, kind: Any, which: int, address: ctypes.c_uint64) -> int:
        assert which == 2
        if not BEGIN <= address.value < END:
            return 1
        kind._obj.value = 2
        return 0

    def cuMemGetHandleForAddressRange(
        self, found: Any, begin: ctypes.c_uint64, size: ctypes.c_size_t, kind: int, flags: Any
    ) -> int:
        assert (kind, flags.value) == (1, 0)
        assert begin.value % mmap.PAGESIZE == size.value % mmap.PAGESIZE == 0
        self.exported.append((begin.value, size.value))
        if self.is_able:
            found._obj.value = os.open(self.path, os.O_RDONLY)
        return 0 if self.is_able else 801


def test_gpu_memory_is_registered_by_its_dmabuf_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpu").touch()
    driver = Driver(tmp_path / "gpu", is_able=True)
    monkeypatch.setattr(dmabuf.ctypes, "CDLL", driver)
    fabric = Fabric()
    registrations = Registrations([fabric.open(name) for name in fabric.names])
    before = len(os.listdir("/proc/self/fd"))
    entry = registrations.add(BEGIN + 5000, 10_000, is_writable=True)
    assert entry.dmabuf
    assert entry.dmabuf.offset == 5000 % mmap.PAGESIZE
    assert driver.exported == [(BEGIN + mmap.PAGESIZE, 3 * mmap.PAGESIZE)]
    assert {region.address for region in entry.regions.values()} == {BEGIN + 5000}
    registrations.remove(entry)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not fabric.regions


def test_gpu_memory_that_cannot_be_exported_is_left_to_the_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path / "gpu", is_able=False)
    monkeypatch.setattr(dmabuf.ctypes, "CDLL", driver)
    assert dmabuf.dmabuf_of(BEGIN, 10) is None
    assert dmabuf.dmabuf_of(END, 10) is None


def test_no_gpu_library_is_loaded_without_a_gpu() -> None:
    assert dmabuf.dmabuf_of(BEGIN, 10) is None


def test_a_covering_registration_is_found_among_many() -> None:
    fabric = Fabric(["only"])
    registrations = Registrations([fabric.open("only")])
    entries = [registrations.add(4096 + n * 10, 10, is_writable=n % 2 == 0) for n in range(100)]
    wide = registrations.add(4096, 1000, is_writable=True)
    acquire = registrations.acquire
    assert acquire(4096 + 500, 10, Access.LOCAL_WRITE) in (entries[50], wide)
    assert acquire(4096 + 505, 5, Access(0)) in (entries[50], wide)
    assert acquire(4096 + 15, 10, Access.LOCAL_WRITE) is wide
    # It begins too far before the range, so the range is registered again.
    assert acquire(4096 + 905, 10, Access.LOCAL_WRITE).is_temporary
    registrations.close()
    assert not [one for one in fabric.regions.values() if one.length > 10]
