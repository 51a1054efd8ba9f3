"""Tensors on real devices: the conformance kit for their transports, and read throughput."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from mesh_core import Actor, endpoint, this_host
from mesh_rdma import RDMABuffer
from mesh_rdma.testing import TransportConformance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh


def _refusal() -> str | None:
    try:
        import torch
    except ImportError:
        return "there is no torch"
    return None if torch.cuda.is_available() else "torch finds no CUDA device"


if (refusal := _refusal()) is not None:
    pytest.skip(refusal, allow_module_level=True)
pytestmark = pytest.mark.gpu
LEN = 256 << 20
#: Minimum throughput of a read from another process, relative to a copy on the device.
#: Far below the documented figure, because other programs may use the device.
LEAST_SHARE = 0.2


def tensor(nbytes: int) -> Any:
    """Return a tensor that shares its allocation with other data."""
    import torch

    return torch.empty(nbytes + 8, dtype=torch.uint8, device="cuda")[8:]


def use_devices() -> None:
    """Initialize the first device in this process."""
    import torch

    torch.zeros(1, device="cuda")


class OfTensors(TransportConformance):
    allocate = staticmethod(tensor)

    @pytest.fixture(scope="class")
    @classmethod
    def procs(cls) -> Iterator[ProcMesh]:
        procs = this_host().spawn_procs({"ranks": 3}, bootstrap=use_devices, name="rdma_kit")
        yield procs
        procs.stop().get()

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def use_here(cls) -> None:
        use_devices()


class TestCuda(OfTensors):
    transport: ClassVar[str] = "cuda"


class TestStaged(OfTensors):
    transport: ClassVar[str] = "staged"


del OfTensors


class Owner(Actor):
    """Owns a tensor on a device."""

    @endpoint
    def register(self) -> RDMABuffer:
        import torch

        self._tensor = torch.full((LEN,), 7, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        return RDMABuffer(self._tensor)


@pytest.fixture(scope="module")
def buffer() -> Iterator[RDMABuffer]:
    procs = this_host().spawn_procs(bootstrap=use_devices, name="gpu_owner")
    yield procs.spawn("owner", Owner).register.call_one().get()
    procs.stop().get()


@pytest.mark.parametrize("transport", ["cuda", "staged"])
def test_tensors_are_copied_from_device_to_device(buffer: RDMABuffer, transport: str) -> None:
    """The transfer waits for earlier work on the current torch stream, also a non-default one."""
    import torch

    here = torch.empty(LEN, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            here.fill_(1)
        buffer.via(transport).read_into(here).get()
    assert bool((here == 7).all())


def test_a_read_is_about_as_fast_as_a_copy(buffer: RDMABuffer) -> None:
    import torch

    here = torch.empty(LEN, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(here)

    def copy() -> None:
        other.copy_(here)
        torch.cuda.synchronize()

    def read() -> None:
        buffer.read_into(here).get()

    copied, got = (min(_seconds(run) for _ in range(5)) for run in (copy, read))
    print(f"a read reaches {copied / got:.2f} of a copy on the device")
    assert buffer.backend == "cuda"
    assert copied / got > LEAST_SHARE


def _seconds(run: Any) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
