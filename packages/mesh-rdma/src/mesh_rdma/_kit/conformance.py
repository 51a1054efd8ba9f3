"""The tests that every transport must pass."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import mesh_rdma._kit.assertion_rewriting  # noqa: F401 (must precede the modules below)
from mesh_core import this_host
from mesh_core.testing import wait_until
from mesh_rdma import _core
from mesh_rdma._kit.concurrency_tests import ConcurrencyTests
from mesh_rdma._kit.copy_tests import CopyTests
from mesh_rdma._kit.lifetime_tests import LifetimeTests
from mesh_rdma._kit.processes import TRANSIT_S, Process, Processes
from mesh_rdma._kit.termination_tests import TerminationTests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh

__all__ = ["TransportConformance"]

_RANKS = 3


class TransportConformance(CopyTests, ConcurrencyTests, LifetimeTests, TerminationTests):
    """Conformance tests of a transport through the public API; subclass it to name a transport.

        class TestMine(TransportConformance):
            transport = "mine"

    This is sufficient if the transport is installed as an entry point of `mesh_rdma.transports`,
    works on a single machine, and supports any memory. Otherwise, the subclass defines what the
    transport requires:

        class TestMineOfADevice(TransportConformance):
            transport = "mine"
            allocate = staticmethod(my_package.testing.device_memory)

            @pytest.fixture(scope="class")
            @classmethod
            def procs(cls):
                yield my_hosts().spawn_procs({"ranks": 3}, name="mine")

    The tests register memory in one process and access it with `RDMABuffer.via(transport)` in
    another. Some tests kill processes. The tests require only pytest; each takes well under a
    second, and also passes on a loaded machine.

    Attributes:
        transport: The name of the transport.
        allocate: A function that allocates a given number of bytes in the process that calls it.
            The memory is writable by the CPU and has the buffer protocol. It must be a function of
            a module, because other processes also call it.
        is_same_process: Whether the transport is for memory of the calling process only.
    """

    transport: ClassVar[str]
    allocate: ClassVar[staticmethod[[int], Any]] = staticmethod(bytearray)
    is_same_process: ClassVar[bool] = False

    @pytest.fixture(scope="class")
    @classmethod
    def procs(cls) -> Iterator[ProcMesh]:
        """Three processes, in a dimension `ranks`, which the tests of one transport use."""
        procs = this_host().spawn_procs({"ranks": _RANKS}, name="rdma_kit")
        # This process also passes handles on.
        _core.set_transit_timeout(TRANSIT_S)
        yield procs
        procs.stop().get()

    @pytest.fixture(scope="class")
    @classmethod
    def places(cls, procs: ProcMesh) -> Processes:
        """The three processes as the tests use them."""
        return Processes(procs, cls.is_same_process)

    @pytest.fixture
    def trio(self, places: Processes) -> Iterator[list[Process]]:
        """The three processes; the fixture checks that a test leaves no registration."""
        allocate = type(self).allocate
        trio = [places.place(self.transport, allocate, rank) for rank in range(_RANKS)]
        before = [place.registrations() for place in trio]
        yield trio
        gc.collect()
        for place in trio:
            place.do("clear")
        for place, count in zip(trio, before, strict=True):
            wait_until(lambda place=place, count=count: place.registrations() <= count)  # type: ignore[misc]

    @pytest.fixture
    def owner(self, trio: list[Process]) -> Process:
        """The process that registers memory."""
        return trio[0]

    @pytest.fixture
    def reader(self, trio: list[Process]) -> Process:
        """A process other than the owner."""
        return trio[1]

    @pytest.fixture
    def other(self, trio: list[Process]) -> Process:
        """A second owner."""
        return trio[1]

    @pytest.fixture
    def third(self, trio: list[Process]) -> Process:
        """A process other than owner and reader."""
        return trio[2]
