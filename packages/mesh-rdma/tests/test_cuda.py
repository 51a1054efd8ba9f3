"""Device memory on the fake driver of the tests: the transports used, and lifetimes."""

from __future__ import annotations

import functools
import os
import signal
import time
import weakref
from typing import TYPE_CHECKING, Any

import fake_gpu
import pytest
from devices import DeviceOwner, unmapped
from freezing import freeze

from mesh_core import this_host
from mesh_core.testing import proc_pid, wait_until
from mesh_rdma import (
    RDMAAction,
    RDMABuffer,
    RDMACancelled,
    RDMAReleased,
    RDMATimeout,
    RDMATransportError,
    VersionedBuffer,
    _core,
    allocate,
    spread,
)
from mesh_rdma._cuda import copier
from mesh_rdma._cuda import exports as cuda_exports
from mesh_rdma._cuda.copier import wait_for_stream_event
from mesh_rdma._cuda.driver import require_driver
from mesh_rdma._cuda.exports import Exports
from mesh_rdma._kit.harness import bytes_of, pattern, put_bytes
from mesh_rdma._staged import target as staged_target
from mesh_rdma._staged.messages import Op
from mesh_rdma._staged.target import DeviceBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mesh_core import ProcMesh

REFUSAL = fake_gpu.refusal()
pytestmark = pytest.mark.skipif(REFUSAL is not None, reason=str(REFUSAL))
LEN = 100_001
#: Longer than the pieces that are copied through host memory.
LONG = (9 << 20) + 5


@pytest.fixture(scope="module")
def gpus() -> Iterator[Path]:
    """A driver; the fixture checks that no undefined behavior of a real driver was used."""
    with fake_gpu.devices() as folder:
        yield folder


@pytest.fixture(scope="module")
def procs(gpus: Path) -> Iterator[ProcMesh]:
    begin = functools.partial(fake_gpu.begin, str(gpus))
    procs = this_host().spawn_procs({"procs": 2}, bootstrap=begin, name="gpu_owners")
    yield procs
    procs.stop().get()


@pytest.fixture
def owners(procs: ProcMesh) -> Iterator[list[Any]]:
    actors = procs.spawn("owners", DeviceOwner)
    yield [actors.slice(procs=0), actors.slice(procs=1)]
    actors.stop().get()


def register(owner: Any, seed: int, kind: str, nbytes: int = LEN) -> RDMABuffer:
    buffer: RDMABuffer = owner.register.call_one(pattern(seed, nbytes), kind).get()[0]
    return buffer


@pytest.mark.parametrize("nbytes", [1, LEN, LONG])
@pytest.mark.parametrize(
    ("there", "here", "transport"),
    [
        ("device", "device", "cuda"),
        ("device", "plain", "cuda"),
        ("device", "second device", "cuda"),
        ("expandable", "device", "staged"),
        ("expandable", "plain", "staged"),
        ("plain", "device", "attach"),
        ("arena", "expandable", "arena"),
    ],
)
def test_bytes_are_copied_between_all_kinds_of_memory(
    owners: list[Any], there: str, here: str, transport: str, nbytes: int
) -> None:
    owner, user = owners
    buffer = register(owner, 1, there, nbytes)
    assert user.read.call_one(buffer, here).get() == (pattern(1, nbytes), transport)
    user.write.call_one(buffer, pattern(2, nbytes), here).get()
    assert owner.seen.call_one().get() == pattern(2, nbytes)


@pytest.mark.parametrize("transport", ["arena", "unix", "tcp"])
def test_the_other_hop_of_a_staged_copy_uses_any_transport(
    owners: list[Any], transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes copies where both sides are device memory and only a network connects them."""
    buffer = register(owners[0], 1, "device", LONG).via("staged")
    found = []

    def cached_target(targets: dict[bytes, Any], encoded: bytes) -> Any:
        target, refused = _core.Handle.decode_borrowed(encoded).select_target(transport)
        assert target is not None, refused
        found.append(target)
        return target

    monkeypatch.setattr(staged_target, "_cached_target", cached_target)
    here = fake_gpu.allocate(LONG)
    buffer.read_into(here).get()
    assert bytes_of(here, 0, LONG) == pattern(1, LONG)
    put_bytes(here, pattern(2, LONG))
    buffer.write_from(here).get()
    assert owners[0].seen.call_one().get() == pattern(2, LONG)
    assert len(found) == 6


def test_a_process_copies_its_own_device_memory(gpus: Path) -> None:
    mine, other = fake_gpu.allocate(LEN), fake_gpu.allocate(LEN)
    buffer = RDMABuffer(mine)
    buffer.write_from(pattern(1, LEN)).get()
    assert buffer.backend == "cuda"
    buffer[5:].read_into(other).get()
    assert bytes_of(other, 0, LEN - 5) == pattern(1, LEN)[5:]
    RDMABuffer(bytearray(pattern(3, LEN))).read_into(mine).get()
    assert bytes_of(mine, 0, LEN) == pattern(3, LEN)
    assert buffer.fetch_add(1, offset=8).get() == int.from_bytes(pattern(3, LEN)[8:16], "little")
    buffer.drop().get()


def test_an_allocation_with_several_tensors_is_mapped_once(owners: list[Any]) -> None:
    """The driver refuses to map an allocation a second time."""
    buffers = owners[0].register.call_one(pattern(1, LEN), "device", 20).get()
    destinations = [bytearray(LEN) for _ in buffers]
    action = RDMAAction()
    for buffer, destination in zip(buffers, destinations, strict=True):
        action.read_remote(destination, buffer)
    action.submit().get()
    assert all(destination == pattern(1, LEN) for destination in destinations)


def test_memory_is_freed_when_it_is_no_longer_mapped(owners: list[Any], gpus: Path) -> None:
    """Freeing mapped memory is undefined, so it is delayed until it is unmapped, but not longer."""
    before = set(gpus.iterdir())
    buffer = register(owners[0], 1, "device")
    (allocation,) = set(gpus.iterdir()) - before
    buffer.read_into(bytearray(LEN)).get()
    owners[0].free.call_one().get()
    wait_until(lambda: not allocation.exists())
    assert fake_gpu.violations(gpus) == []


def test_expandable_segments_are_named_as_the_reason(owners: list[Any]) -> None:
    buffer = register(owners[0], 1, "expandable")
    told = buffer.explain()
    assert told.startswith("staged: taken to ")
    assert "CUDA_ERROR_INVALID_VALUE, invalid argument" in told
    assert "allocate it without expandable segments" in told


def test_each_transport_is_explained(owners: list[Any]) -> None:
    on_device = register(owners[0], 1, "device").explain().splitlines()
    assert on_device[0].startswith("cuda: taken to ")
    for transport in ("memory", "arena", "attach", "unix", "tcp"):
        assert any(
            line.startswith(f"{transport}: ") and "on a device" in line for line in on_device
        )
    assert "staged: a better one is used" in on_device
    on_host = register(owners[1], 1, "plain").explain()
    assert "cuda: the buffer is not in device memory" in on_host


def test_host_transports_refuse_device_memory_at_the_call(owners: list[Any]) -> None:
    """This holds on either side; a process that accesses the address would be killed."""
    on_device, on_host = register(owners[0], 1, "device"), register(owners[1], 1, "plain")
    here = fake_gpu.allocate(LEN)
    for transport in ("arena", "attach", "unix", "tcp"):
        with pytest.raises(RDMATransportError, match="on a device"):
            on_device.via(transport)
        if transport == "arena":
            continue
        with pytest.raises(
            RDMATransportError, match=f"{transport} cannot be used with memory of cuda:0"
        ):
            on_host.via(transport).read_into(here)
    with pytest.raises(RDMATransportError, match="cannot be mapped on the host"):
        on_device.view()
    with pytest.raises(RDMATransportError, match="written to host memory"):
        RDMAAction().fetch_add(here, on_host, 1)


def test_built_in_transports_refuse_a_device_address() -> None:
    """A caller that has bypassed the other checks is refused by a last one."""
    target, _ = RDMABuffer(allocate(LEN))._handle.select_target("memory")
    assert target is not None
    for copy in (target.read, target.write):
        with pytest.raises(RDMATransportError, match="on a device"):
            copy(unmapped(LEN), 0, None)
    ours = RDMABuffer(unmapped(LEN))._handle
    for attempt in (ours.anchor().read, ours.anchor().write):
        with pytest.raises(RDMATransportError, match="on a device"):
            attempt(unmapped(8), 0, None)


def test_the_owner_copies_bytes_for_a_process_without_devices(owners: list[Any]) -> None:
    """Reading device memory neither loads a library nor initializes a device."""
    buffer = register(owners[0], 1, "device", LONG)
    plain = this_host().spawn_procs(name="no_gpu").spawn("plain", DeviceOwner)
    assert plain.read.call_one(buffer, "plain").get() == (pattern(1, LONG), "staged")
    assert "cuda: this process does not use CUDA" in plain.explain.call_one(buffer).get()
    plain.write.call_one(buffer, pattern(2, LONG), "plain").get()
    assert owners[0].seen.call_one().get() == pattern(2, LONG)


def test_each_transport_explains_an_unknown_device() -> None:
    plain = this_host().spawn_procs({"procs": 2}, name="no_gpu").spawn("plain", DeviceOwner)
    (buffer,) = plain.slice(procs=0).register.call_one(bytes(LEN), "unmapped").get()
    with pytest.raises(RDMATransportError, match="no transport to") as raised:
        plain.slice(procs=1).read.call_one(buffer, "plain").get()
    for reason in (
        "tcp: the memory is on a device",
        "this process does not use CUDA",
        "staged: the owner uses no CUDA device",
    ):
        assert reason in str(raised.value)


def test_bytes_are_copied_between_two_owners(owners: list[Any]) -> None:
    source = register(owners[0], 1, "device", LONG)
    for kind in ("device", "plain"):
        destination = owners[1].register.call_one(bytes(LONG), kind).get()[0]
        destination.copy_from(source).get()
        assert owners[1].seen.call_one().get() == pattern(1, LONG)
    back = register(owners[1], 2, "plain", LONG)
    source.copy_from(back).get()
    assert owners[0].seen.call_one().get() == pattern(2, LONG)


def test_weights_are_spread_to_devices(owners: list[Any]) -> None:
    source = RDMABuffer(bytearray(pattern(1, LONG)))
    places = [owner.register.call_one(bytes(LONG), "device").get()[0] for owner in owners]
    spread(source, places, timeout=30.0).get()
    assert all(owner.seen.call_one().get() == pattern(1, LONG) for owner in owners)


def test_versions_are_read_into_device_memory(gpus: Path) -> None:
    weights = VersionedBuffer(LEN)
    weights.publish(pattern(4, LEN))
    here = fake_gpu.allocate(LEN)
    weights.reader().read_into(here).get()
    assert bytes_of(here, 0, LEN) == pattern(4, LEN)


def test_a_batch_mixes_host_and_device_memory(owners: list[Any]) -> None:
    on_device, on_host = register(owners[0], 1, "device"), register(owners[1], 2, "plain")
    here, there = fake_gpu.allocate(LEN), fake_gpu.allocate(LEN)
    destination = bytearray(LEN)
    action = RDMAAction().read_remote(here, on_device).read_remote(there, on_host)
    action.read_remote(destination, on_device).submit().get()
    assert bytes_of(here, 0, LEN) == destination == pattern(1, LEN)
    assert bytes_of(there, 0, LEN) == pattern(2, LEN)


def test_a_buffer_on_an_invisible_device_is_explained_and_staged(
    owners: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = register(owners[0], 1, "second device")
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "1")
    assert "see CUDA_VISIBLE_DEVICES" in buffer.explain()
    assert buffer.backend == "staged"
    destination = bytearray(LEN)
    buffer.read_into(destination).get()
    assert destination == pattern(1, LEN)


def test_copies_between_devices_without_peer_access_use_the_owning_device(
    owners: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUDA_NO_PEERS", "1")
    buffer = register(owners[0], 1, "second device")
    used = fake_gpu.Allocation(1, device=1)
    here = fake_gpu.allocate(LEN)
    buffer.read_into(here).get()
    assert buffer.backend == "cuda"
    del used
    assert bytes_of(here, 0, LEN) == pattern(1, LEN)


@pytest.mark.parametrize("verb", ["read", "write"])
@pytest.mark.parametrize("end", ["deadline", "cancel"])
@pytest.mark.parametrize("transport", ["cuda", "staged"])
def test_nothing_is_written_after_a_copy_expires_or_is_cancelled(
    owners: list[Any], transport: str, end: str, verb: str, slow: None
) -> None:
    """The driver starts pieces late: submitted pieces are awaited, and no others are started."""
    buffer = register(owners[0], 1, "device", LONG).via(transport)
    here = fake_gpu.allocate(LONG)
    put_bytes(here, bytes(LONG))
    copy = buffer.read_into if verb == "read" else buffer.write_from
    future = copy(here, timeout=0.015 if end == "deadline" else 60.0)
    if end == "cancel":
        future.cancel()
    with pytest.raises(RDMATimeout if end == "deadline" else RDMACancelled):
        future.get()
    if verb == "read":
        put_bytes(here, pattern(2, LONG))
    else:
        owners[0].fill.call_one(2).get()
    # This copy follows all copies that could still be in progress.
    buffer.read_into(bytearray(LONG)).get()
    found = bytes_of(here, 0, LONG) if verb == "read" else owners[0].seen.call_one().get()
    assert found == pattern(2, LONG)


def test_a_drop_waits_for_device_copies(owners: list[Any], slow: None) -> None:
    """The memory may be freed afterwards: no copy is in progress, and mappings end soon."""
    buffer = register(owners[0], 1, "device", LONG)
    futures = [buffer.read_into(fake_gpu.allocate(LONG)) for _ in range(3)]
    owners[0].free.call_one().get()
    for future in futures:
        with pytest.raises(RDMAReleased):
            future.get()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the driver of this process start each piece 20 ms late, and make all pieces short."""
    monkeypatch.setenv("FAKE_CUDA_PAUSE_US", "20000")
    monkeypatch.setattr(copier, "_DEVICE_PIECE_LEN", 1 << 20)


class Memory:
    """An object that is kept alive."""


def test_memory_is_not_kept_for_dead_processes(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that maps an allocation renews its lease; a dead process does not."""
    monkeypatch.setattr(cuda_exports, "LEASE_S", 0.05)
    exports, driver = Exports(), require_driver()
    memory, tensor = fake_gpu.allocate(LEN), Memory()
    is_kept = weakref.ref(tensor)
    export, offset = exports.add(driver, 0, memory.address)
    assert offset == 512
    assert exports.opened(export.number, b"somebody")
    exports.remove(export, tensor)
    del tensor
    assert exports.get(export.number) is export
    wait_until(lambda: is_kept() is None)
    assert not exports.opened(export.number, b"somebody")


def test_a_late_request_of_a_cancelled_copy_writes_nothing(gpus: Path) -> None:
    """A late request finds no piece, so none of its bytes reach the buffer."""
    memory = fake_gpu.allocate(LEN)
    put_bytes(memory, pattern(1, LEN))
    anchor = DeviceBuffer(RDMABuffer(memory)._handle)
    assert anchor.send(anchor.make_request(Op.ACQUIRE, copy_id=b"w" * 16), 1.0)
    anchor.send(anchor.make_request(Op.BREAK, copy_id=b"w" * 16), 1.0)
    with pytest.raises(RDMACancelled):
        anchor.send(anchor.make_request(Op.DRAIN, 0, LEN, copy_id=b"w" * 16), 1.0)
    assert bytes_of(memory, 0, LEN) == pattern(1, LEN)


def test_a_copy_from_a_stuck_owner_times_out(owners: list[Any], procs: ProcMesh) -> None:
    buffer = register(owners[0], 1, "expandable", LONG)
    assert buffer.backend == "staged"
    pid = proc_pid(procs, 0)
    freeze(pid)
    begun = time.monotonic()
    try:
        with pytest.raises(RDMATimeout):
            buffer.read_into(fake_gpu.allocate(LONG), timeout=0.2).get()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - begun < 5.0
    here = bytearray(LONG)
    buffer.read_into(here).get()
    assert here == pattern(1, LONG)


@pytest.mark.parametrize("transport", ["cuda", "staged"])
def test_a_copy_runs_after_work_submitted_before_it(
    owners: list[Any], transport: str, slow: None
) -> None:
    """A copy does not overtake work that the program has submitted to its stream."""
    buffer = register(owners[0], 1, "device").via(transport)
    here, old = fake_gpu.allocate(LEN), fake_gpu.allocate(LEN)
    put_bytes(old, pattern(2, LEN))
    for _ in range(5):
        require_driver().copy(0, 0, here.address, old.address, LEN)
    buffer.read_into(here).get()
    wait_for_stream_event(0)
    assert bytes_of(here, 0, LEN) == pattern(1, LEN)
