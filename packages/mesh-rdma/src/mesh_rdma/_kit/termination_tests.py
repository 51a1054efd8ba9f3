"""Conformance tests of transfers and processes that end early."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest

from mesh_core.testing import wait_until
from mesh_rdma._errors import RDMACancelled, RDMAError, RDMAPeerDied, RDMATimeout
from mesh_rdma._kit.harness import Harness, pattern

if TYPE_CHECKING:
    from mesh_rdma._buffers.buffer import RDMABuffer
    from mesh_rdma._kit.processes import Process, Processes

__all__ = ["TerminationTests"]

_LARGE = 16 << 20


class TerminationTests:
    """Deadlines, cancellation and deaths."""

    transport: ClassVar[str]
    is_same_process: ClassVar[bool]

    def test_a_timeout_of_zero_fails_without_a_transfer(self, owner: Process) -> None:
        """A timeout of zero raises a typed error, and no byte is changed."""
        registered = owner.register(1000, seed=1)
        here = bytearray(1000)
        for future in (
            registered.buffer.read_into(here, timeout=0.0),
            registered.buffer.write_from(bytes(1000), timeout=0),
            registered.buffer.fetch_add(1, timeout=0.0),
        ):
            with pytest.raises(RDMATimeout, match="the transfer was not done in time"):
                future.get()
        assert here == bytes(1000)
        assert registered.has_pattern(1, 1000)

    @pytest.mark.parametrize("limit", [-1.0, float("nan"), float("inf")])
    def test_an_invalid_transfer_timeout_is_refused(self, owner: Process, limit: float) -> None:
        """A timeout is a finite non-negative number of seconds, or None."""
        registered = owner.register(100, seed=1)
        with pytest.raises(ValueError, match="timeout"):
            registered.buffer.read_into(bytearray(100), timeout=limit)
        registered.buffer.read_into(bytearray(100), timeout=None).get()

    def test_a_read_writes_nothing_after_its_deadline(self, owner: Process) -> None:
        """After a read has raised, its destination is not written anymore."""
        registered = owner.register(_LARGE, seed=1)
        here = bytearray(_LARGE)
        _expire(registered.buffer, here, "read")
        here[:] = pattern(2, _LARGE)
        registered.buffer.read_into(bytearray(_LARGE)).get()
        assert here == pattern(2, _LARGE)

    def test_a_write_changes_nothing_after_its_deadline(self, owner: Process) -> None:
        """After a write has raised, the buffer is not written anymore."""
        registered = owner.register(_LARGE)
        _expire(registered.buffer, bytearray(pattern(1, _LARGE)), "write")
        registered.fill(2)
        registered.buffer.read_into(bytearray(_LARGE)).get()
        assert registered.has_pattern(2, _LARGE)

    def test_a_transfer_writes_nothing_after_it_is_cancelled(self, owner: Process) -> None:
        """After a future is cancelled, it is done, and its transfer has ended."""
        registered = owner.register(_LARGE, seed=1)
        here, there = bytearray(_LARGE), bytearray(pattern(3, _LARGE))
        for future in (registered.buffer.read_into(here), registered.buffer.write_from(there)):
            was_pending = future.cancel()
            assert future.done()
            assert not future.cancel()
            if was_pending:
                with pytest.raises(RDMACancelled):
                    future.get()
        here[:] = pattern(4, _LARGE)
        registered.fill(5)
        registered.buffer.read_into(bytearray(_LARGE)).get()
        assert here == pattern(4, _LARGE)
        assert registered.has_pattern(5, _LARGE)

    def test_transfers_fail_after_the_death_of_the_owner(
        self, owner: Process, places: Processes
    ) -> None:
        """Current and later transfers raise a typed error, and a new owner can be used."""
        self._needs_two_processes()
        registered = owner.register(_LARGE, seed=1)
        here = Harness()
        copies = [
            here.begin_copies(registered.handle, self.transport, verb) for verb in ("read", "write")
        ]
        places.kill(0)
        assert [here.error_of_copies(one) for one in copies] == ["RDMAPeerDied"] * 2
        for future in (
            registered.buffer.read_into(bytearray(_LARGE)),
            registered.buffer.write_from(b"never"),
            registered.buffer.fetch_add(1),
            registered.buffer.drop(),
        ):
            with pytest.raises(RDMAPeerDied):
                future.get()
        with pytest.raises(RDMAPeerDied):
            registered.handle.via(self.transport)
        places.replace(0)
        again = owner.register(5000, seed=2)
        found = bytearray(5000)
        again.buffer.read_into(found).get()
        assert found == pattern(2, 5000)

    def test_a_dead_reader_changes_no_other_bytes_and_delays_no_drop(
        self, owner: Process, reader: Process, places: Processes
    ) -> None:
        """A dead reader changes no byte outside of its range, and does not delay a drop."""
        self._needs_two_processes()
        registered = owner.register(_LARGE, seed=1)
        visitors = owner.do("counts")[2]
        part = registered.handle[5000 : _LARGE - 5000]
        for verb in ("read", "write"):
            reader.do("begin_copies", part, self.transport, verb)
        places.kill(1)
        owner.do("drop", registered.number)
        for start in (0, _LARGE - 5000):
            assert registered.bytes_at(start, 5000) == pattern(1, _LARGE)[start : start + 5000]
        registered.fill(2)
        wait_until(lambda: owner.do("counts")[2] <= visitors)
        assert registered.has_pattern(2, _LARGE)
        places.replace(1)

    def _needs_two_processes(self) -> None:
        if self.is_same_process:
            pytest.skip(f"who uses {self.transport} dies with the owner")


def _expire(buffer: RDMABuffer, local: bytearray, verb: str) -> None:
    """Copy with decreasing time limits until one expires."""
    limit = 0.01
    while True:
        copy = buffer.read_into if verb == "read" else buffer.write_from
        try:
            copy(local, timeout=limit).get()
        except RDMATimeout:
            return
        except RDMAError as error:
            raise AssertionError(f"{error!r}, and a timeout was expected") from error
        limit /= 2
