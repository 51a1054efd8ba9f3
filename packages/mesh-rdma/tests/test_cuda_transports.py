"""The conformance tests for the transports of device memory, on the fake driver of the tests."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

import fake_gpu
import pytest

from mesh_core import this_host
from mesh_rdma.testing import TransportConformance

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mesh_core import ProcMesh

REFUSAL = fake_gpu.refusal()
pytestmark = pytest.mark.skipif(REFUSAL is not None, reason=str(REFUSAL))


@pytest.fixture(scope="module")
def gpus() -> Iterator[Path]:
    """A driver; the fixture checks that no undefined behavior of a real driver was used."""
    with fake_gpu.devices() as folder:
        yield folder


class OfDevices(TransportConformance):
    allocate = staticmethod(fake_gpu.allocate)

    @pytest.fixture(scope="class")
    @classmethod
    def procs(cls, gpus: Path) -> Iterator[ProcMesh]:
        begin = functools.partial(fake_gpu.begin, str(gpus))
        procs = this_host().spawn_procs({"ranks": 3}, bootstrap=begin, name="rdma_kit")
        yield procs
        procs.stop().get()


class TestCuda(OfDevices):
    transport: ClassVar[str] = "cuda"


class TestStaged(OfDevices):
    transport: ClassVar[str] = "staged"


del OfDevices
