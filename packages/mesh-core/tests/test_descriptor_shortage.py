"""A temporary shortage of descriptors loses no message and no connection."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mesh_core import Actor, ProcMesh, endpoint, this_host
from mesh_core.testing import wait_until

#: Exceeds the threshold above which payloads use shared memory.
LARGE = 4 << 20
LIMIT_S = 60.0


class Large(Actor):
    """Receives and returns large messages."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def length(self, data: bytes) -> int:
        return len(data)

    @endpoint
    def give(self, length: int) -> bytes:
        return bytes(length)

    @endpoint
    def ask(self, other: Large, data: bytes) -> int:
        return other.length.call_one(data).get(timeout=LIMIT_S)


@contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """Prevent a process from getting any descriptor by open, accept or receive."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def sockets_of(pid: int) -> set[str]:
    """Return the open sockets of a process."""
    links = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
    return {link for link in links if link.startswith("socket:")}


@pytest.fixture
def two() -> Iterator[ProcMesh]:
    with this_host().spawn_procs({"n": 2}, name="short") as procs:
        yield procs


def test_a_segment_that_could_not_be_received_is_announced_again(two: ProcMesh) -> None:
    actor = two.slice(n=0).spawn("large", Large)
    pid = actor.pid.call_one().get()
    sockets = sockets_of(pid)
    with no_descriptors(pid):
        call = actor.length.call_one(bytes(LARGE))
        # The descriptor is lost, so the process closes the connection by which it arrived.
        wait_until(lambda: not sockets <= sockets_of(pid))
        assert not call.done()
    assert call.get(timeout=LIMIT_S) == LARGE
    assert actor.length.call_one(bytes(LARGE + 1)).get(timeout=LIMIT_S) == LARGE + 1


def test_a_large_reply_waits_until_its_caller_has_descriptors(two: ProcMesh) -> None:
    asker, other = two.slice(n=0).spawn("asker", Large), two.slice(n=1).spawn("other", Large)
    pid, data = asker.pid.call_one().get(), bytes(LARGE)
    assert asker.ask.call_one(other, b"small").get() == 5
    sockets = sockets_of(pid)
    with no_descriptors(pid):
        # The first message to this process, by shared memory, cannot be received.
        call = asker.ask.call_one(other, data)
        wait_until(lambda: not sockets <= sockets_of(pid))
    assert call.get(timeout=LIMIT_S) == LARGE
    assert asker.give.call_one(LARGE).get(timeout=LIMIT_S) == data


def test_a_first_call_from_a_process_without_descriptors_succeeds_later(two: ProcMesh) -> None:
    caller, other = two.slice(n=0).spawn("caller", Large), two.slice(n=1).spawn("other", Large)
    beside = two.slice(n=0).spawn("beside", Large)
    pid = beside.pid.call_one().get()
    other.pid.call_one().get()
    with no_descriptors(pid):
        call = caller.ask.call_one(other, b"first")
        # The process continues to serve existing connections.
        for _ in range(100):
            assert beside.length.call_one(b"x").get(timeout=LIMIT_S) == 1
        assert not call.done()
    assert call.get(timeout=LIMIT_S) == 5


def test_a_first_call_to_a_process_without_descriptors_succeeds_later(two: ProcMesh) -> None:
    caller, other = two.slice(n=0).spawn("caller", Large), two.slice(n=1).spawn("other", Large)
    caller.pid.call_one().get()
    pid = other.pid.call_one().get()
    with no_descriptors(pid):
        call = caller.ask.call_one(other, b"first")
        # It cannot accept new connections, and serves existing ones.
        for _ in range(100):
            assert other.length.call_one(b"x").get(timeout=LIMIT_S) == 1
        assert not call.done()
    assert call.get(timeout=LIMIT_S) == 5
