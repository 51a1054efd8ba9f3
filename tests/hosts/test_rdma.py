"""Hosts read and write each other's memory: completely, encrypted and within the deadline."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mesh_core.testing import wait_until
from tests.hosts.cluster import Program, memory
from tests.hosts.world import Host, World

MIB = 1 << 20

#: Time limit for a process to detect that another host is dead, on a busy machine.
DEATH_LIMIT_S = 9.0

#: Allowed overrun of a deadline: 50 ms, and slack for other tests on the machine.
BUSY_SLACK_S = 0.35

#: An upper bound of the bytes of a slow connection in a receive buffer of the kernel.
RECEIVE_BUFFER_MAX = 8 * MIB

_pause = threading.Event()


#: A TLS record with the fatal alert `unexpected_message`.
UNEXPECTED_MESSAGE = bytes([21, 3, 3, 0, 2, 2, 10])


@pytest.fixture
def programs(world: World) -> Iterator[list[Program]]:
    """A program on each host."""
    with ExitStack() as stack:
        yield [stack.enter_context(Program(host)) for host in world.hosts]


def port_of(host: Host) -> int:
    """Return the port on which the one process with registered memory listens."""
    with open(f"/proc/{host.pids()[0]}/net/tcp6") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    (port,) = {int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[3] == "0A"}
    return port


def test_a_handle_works_on_every_host_that_gets_it(programs: list[Program]) -> None:
    owner, user = programs
    handle = owner.do(memory.offer, "it", 24 * MIB + 13)
    assert user.do(memory.take, "it", handle) == "tcp"
    assert user.do(memory.read, "it", 24 * MIB + 13).name == "done"
    assert user.do(memory.write, "it", 20 * MIB + 1).name == "done"
    assert owner.do(memory.written, "it") == 20 * MIB + 1
    owner.do(memory.drop, "it")
    assert user.do(memory.read, "it", 8).name == "RDMAReleased"


@pytest.mark.hosts(3)
def test_a_handle_can_be_shared_by_several_hosts(programs: list[Program]) -> None:
    owner, second, third = programs
    handle = owner.do(memory.offer, "it", 64)
    second.do(memory.take, "it", handle)
    third.do(memory.take, "it", handle)
    first = second.do(memory.add, "it", 5)
    assert third.do(memory.add, "it", 1) == first + 5


def test_peers_without_tls_or_the_secret_get_no_data(world: World, programs: list[Program]) -> None:
    """A peer without TLS, or with TLS and without the secret, gets no data and is counted."""
    owner, _user = programs
    there, here = world.hosts
    owner.do(memory.offer, "it", 64)
    port = port_of(there)
    hello = struct.pack("<B3xI5Q", 1, 0, 1, 2, 0, 0, 0)
    with here.connect(there.address, port) as plain:
        plain.sendall(hello)
        assert _said(plain) == UNEXPECTED_MESSAGE
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["mesh-rdma"])
    with context.wrap_socket(here.connect(there.address, port)) as sealed:
        assert sealed.version() == "TLSv1.3"
        sealed.sendall(hello)
        assert b"another process" in _said(sealed)
    with here.connect(there.address6, port) as silent:
        started = time.monotonic()
        assert _said(silent) == b""
        assert time.monotonic() - started < 10.0
    assert owner.do(memory.refused)[:3] == (1, 1, 1)


def test_idle_unauthenticated_peers_block_no_transfer(
    world: World, programs: list[Program]
) -> None:
    owner, user = programs
    there, here = world.hosts
    handle = owner.do(memory.offer, "it", MIB)
    before = owner.do(memory.left_behind)
    port = port_of(there)
    with ExitStack() as peers:
        for _ in range(100):
            peers.enter_context(here.connect(there.address, port))
        assert user.do(memory.take, "it", handle) == "tcp"
        assert user.do(memory.read, "it", MIB).name == "done"
    more = {name: count + 8 for name, count in before.items()}
    held = owner.do(memory.settle, 15.0, more)
    assert all(held[name] <= more[name] for name in more), held


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_power_cut_during_a_copy_raises_an_error(
    world: World, programs: list[Program], verb: str
) -> None:
    owner, user = programs
    user.do(memory.take, "it", owner.do(memory.offer, "it", 64 * MIB))
    with world.faults.bandwidth(world.hosts[0], 200_000_000):
        copying = user.begin(getattr(memory, verb), "it", 64 * MIB, None)
        _pause.wait(0.5)
        assert not copying.done()
        started = time.monotonic()
        with world.faults.power_cut(world.hosts[0]):
            ended = copying.result(30)
    assert ended.name == "RDMAPeerDied", ended
    assert time.monotonic() - started < DEATH_LIMIT_S + 3.0


@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_partition_during_a_copy_ends_it_at_the_deadline(
    world: World, programs: list[Program], verb: str
) -> None:
    owner, user = programs
    user.do(memory.take, "it", owner.do(memory.offer, "it", 64 * MIB))
    with world.faults.bandwidth(world.hosts[0], 200_000_000):
        copying = user.begin(getattr(memory, verb), "it", 64 * MIB, 1.0)
        _pause.wait(0.5)
        with world.faults.partition([world.hosts[0]]):
            ended = copying.result(30)
            assert ended.name == "RDMATimeout", ended
            assert ended.took_s < 1.0 + BUSY_SLACK_S
            there = owner.do(memory.written, "it")
            _pause.wait(0.3)
        # An aborted write does not arrive after the network is restored.
        _pause.wait(1.0)
        assert owner.do(memory.written, "it") == there
    # The connection works as well as it did before the fault.
    assert user.do(memory.write, "it", MIB).name == "done"


def test_a_paused_host_gets_no_late_bytes(world: World, programs: list[Program]) -> None:
    owner, user = programs
    user.do(memory.take, "it", owner.do(memory.offer, "it", 64 * MIB))
    user.do(memory.take, "same", owner.do(memory.offer, "same", 64 * MIB))
    place = owner.do(memory.address, "it")
    connected = _established(owner.process.pid)
    with world.faults.bandwidth(world.hosts[0], 100_000_000):
        # At this bandwidth, both would take more than five seconds.
        writing = user.begin(memory.write, "it", 64 * MIB, 4.0)
        reading = user.begin(memory.read, "same", 64 * MIB, 4.0)
        wait_until(lambda: memory.UNTOUCHED in _memory_of(owner.process.pid, place, MIB))
        with world.faults.pause(world.hosts[0]):
            for ended in (writing.result(30), reading.result(30)):
                assert ended.name == "RDMATimeout", ended
                assert ended.took_s < 4.0 + BUSY_SLACK_S
            assert "may still be written" in writing.result().message
            # The peer no longer exists once its connections are closed, by another thread.
            _wait_until_established(owner.process.pid, connected)
            there = _memory_of(owner.process.pid, place, 64 * MIB)
            assert there.count(memory.UNTOUCHED) > 0
        # After it resumes, it detects that its peer no longer exists. A thread that was stopped
        # between the check of its connection and the read still writes the bytes that the kernel
        # holds, and no more.
        assert owner.do(memory.settle, 10.0, {"visitors": 2})["visitors"] <= 2
        after = _memory_of(owner.process.pid, place, 64 * MIB)
        late = [
            at for at in range(0, 64 * MIB, MIB) if after[at : at + MIB] != there[at : at + MIB]
        ]
        assert len(late) * MIB <= RECEIVE_BUFFER_MAX
    assert user.do(memory.write, "it", MIB).name == "done"


@pytest.mark.hosts(3)
def test_a_paused_host_does_not_delay_copies_from_other_hosts(
    world: World, programs: list[Program]
) -> None:
    stuck, good, user = programs
    for name, owner in (("stuck", stuck), ("good", good)):
        user.do(memory.take, name, owner.do(memory.offer, name, 32 * MIB))
    with world.faults.pause(world.hosts[0]):
        waiting = [user.begin(memory.read, "stuck", 32 * MIB, 20.0) for _ in range(20)]
        assert user.do(memory.read, "good", 32 * MIB, 15.0).name == "done"
        assert not any(one.done() for one in waiting)
    for one in waiting:
        assert one.result(60).name == "done"


def test_aborted_copies_leave_nothing_behind(world: World, programs: list[Program]) -> None:
    owner, user = programs
    user.do(memory.take, "it", owner.do(memory.offer, "it", 64 * MIB))
    assert user.do(memory.read, "it", 64 * MIB).name == "done"
    before = [one.do(memory.left_behind) for one in programs]
    with world.faults.bandwidth(world.hosts[0], 100_000_000):
        for at in range(30):
            step = memory.write if at % 2 else memory.read
            assert user.do(step, "it", 64 * MIB, 0.02).name == "RDMATimeout"
    for one, held in zip(programs, before, strict=True):
        more = {name: count + 6 for name, count in held.items()}
        now = one.do(memory.settle, 20.0, more)
        assert all(now[name] <= more[name] for name in more), (held, now)


def test_lost_packets_lose_no_byte(world: World, programs: list[Program]) -> None:
    owner, user = programs
    user.do(memory.take, "it", owner.do(memory.offer, "it", 8 * MIB))
    with world.faults.loss(2):
        assert user.do(memory.read, "it", 8 * MIB).name == "done"
        assert user.do(memory.write, "it", 8 * MIB).name == "done"
    assert owner.do(memory.written, "it") == 8 * MIB


def test_a_link_of_100_megabits_is_saturated(world: World, programs: list[Program]) -> None:
    """The buffers of the kernel hold enough for the time that a process waits for a processor."""
    owner, user = programs
    user.do(memory.take, "it", owner.do(memory.offer, "it", 16 * MIB))
    with world.faults.bandwidth(world.hosts[0], 100_000_000):
        user.do(memory.rate, "it", 2 * MIB)
        best = max(user.do(memory.rate, "it", 16 * MIB) for _ in range(3))
    # The bytes counted on the wire include the headers of packets and records.
    assert best * 8 >= 0.9 * 100_000_000


def test_an_exited_process_is_distinguished_from_an_unresponsive_one(
    world: World, programs: list[Program]
) -> None:
    owner, user = programs
    user.do(memory.take, "it", owner.do(memory.offer, "it", 64))
    owner.process.send_signal(signal.SIGKILL)
    owner.process.wait(10)
    ended = user.do(memory.read, "it", 64)
    assert ended.name == "RDMAPeerDied", ended
    assert ended.took_s < 2.0


def _memory_of(pid: int, address: int, nbytes: int) -> bytes:
    """Read memory of a process, also while the process is stopped."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        return os.pread(file.fileno(), nbytes, address)


def _established(pid: int) -> int:
    """Return the number of TCP connections of the host on which a process runs."""
    rows = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as file:
            rows += file.readlines()[1:]
    return sum(row.split()[3] == "01" for row in rows)


def _wait_until_established(pid: int, count: int) -> None:
    """Wait until the host of a process has at most `count` TCP connections."""
    until = time.monotonic() + 30
    while (left := _established(pid)) > count:
        assert time.monotonic() < until, f"{left} connections are left, expected {count}"
        _pause.wait(0.02)


def _said(connection: socket.socket) -> bytes:
    """Return everything that the peer sends until it closes the connection."""
    said = b""
    try:
        while data := connection.recv(4096):
            said += data
    except ConnectionError:
        pass
    return said
