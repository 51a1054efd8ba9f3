"""Programs for tests of forks and of process ends: each function runs in a new interpreter."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from typing import Any

import mesh_rdma
from mesh_rdma import RDMABuffer, _core


def say(message: Any) -> None:
    """Print one line for the process that runs the program."""
    print(message, flush=True)


def hear() -> str:
    """Wait for a line."""
    return sys.stdin.readline().strip()


def in_child(run: Any) -> None:
    """Run a function in a forked child, and wait for it."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def owner_with_a_child() -> None:
    """Register memory, and get killed while a forked copy of this process lives."""
    memory = bytearray(b"kept" * 1000)
    buffer = RDMABuffer(memory)
    say(pickle.dumps(buffer).hex())
    assert hear() == "connected"
    child = os.fork()
    if child == 0:
        signal.pause()
    say(child)
    hear()


def child_lets_go() -> None:
    """A child drops the objects that it inherited; the objects of the parent are unaffected."""
    memory = mesh_rdma.allocate(8192)
    memory[:4] = b"mine"
    buffer, other = RDMABuffer(memory), RDMABuffer(bytearray(64))
    held = [memory, buffer, other]
    views = [buffer.view()]

    def run() -> None:
        nonlocal memory, buffer, other
        memory, buffer, other = memoryview(b""), pickle.loads(pickle.dumps(buffer)), buffer
        other = buffer
        held.clear()
        views.clear()
        gc.collect()

    in_child(run)
    view = views[0]
    assert bytes(memory[:4]) == bytes(view[:4]) == b"mine"
    here = bytearray(64)
    other.read_into(here).get()
    buffer.write_from(b"more").get()
    assert bytes(memory[:4]) == b"more"
    assert _core.counts()[:2] == (2, 0)
    buffer.drop().get()
    # The view of the parent still counts.
    assert _core.counts()[:2] == (1, 1)
    say("done")


def child_uses_what_it_inherits() -> None:
    """A child reads the memory of its parent, not its copy of it, and can register memory."""
    memory = bytearray(b"old!" * 100_000)
    buffer = RDMABuffer(memory)
    remote = pickle.loads(bytes.fromhex(hear()))
    before = bytearray(4000)
    remote.read_into(before).get()
    big = bytearray(1 << 22)
    pending = RDMABuffer(big).read_into(bytearray(1 << 22))
    turn, reply = os.pipe(), os.pipe()

    def run() -> None:
        os.read(turn[0], 1)
        assert _core.counts() == (0, 0, 0, 0)
        here = bytearray(400_000)
        buffer.read_into(here).get()
        assert here == b"new!" * 100_000
        buffer.write_from(b"ours").get()
        assert buffer.backend != "memory"
        remote.read_into(here, length=4000).get()
        assert here[:4000] == before
        mine = RDMABuffer(bytearray(b"mine"))
        mine.read_into(here).get()
        assert here[:4] == b"mine"
        assert isinstance(pending.exception(), mesh_rdma.RDMACancelled)
        os.write(reply[1], b"x")

    pid = os.fork()
    if pid == 0:
        run()
        os._exit(0)
    memory[:] = b"new!" * 100_000
    os.write(turn[1], b"x")
    os.close(reply[1])
    assert os.read(reply[0], 1) == b"x"
    assert os.waitpid(pid, 0)[1] == 0
    pending.get()
    assert bytes(memory[:8]) == b"oursnew!"
    say("done")


def _add(buffer: RDMABuffer) -> None:
    for _ in range(100):
        buffer.fetch_add(1).get()


def multiprocessing_children() -> None:
    """Children of multiprocessing receive a buffer as an argument, through fork."""
    memory = bytearray(8)
    buffer = RDMABuffer(memory)
    _add(buffer)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_add, args=(buffer,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert int.from_bytes(memory, "little") == 400
    say("done")


def started_programs_get_nothing() -> None:
    """A started program inherits no descriptor of this package."""
    buffer = RDMABuffer(mesh_rdma.allocate(64))
    remote = pickle.loads(bytes.fromhex(hear()))
    for transport in ("attach", "unix", "tcp"):
        remote.via(transport).read_into(bytearray(4000)).get()
    listed = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True, close_fds=False
    )
    assert "mesh-rdma" not in listed.stdout
    assert "socket:" not in listed.stdout
    del buffer
    say("done")


def ends_in_the_middle() -> None:
    """Exit with transfers in flight, views, busy threads and waiting tasks."""
    remote = pickle.loads(bytes.fromhex(hear()))
    arena = mesh_rdma.allocate(1 << 22)
    ours = RDMABuffer(arena)
    keep: list[Any] = [ours.view(), ours]
    buffers = [ours, *(remote.via(transport) for transport in ("attach", "unix", "tcp"))]
    started = threading.Barrier(len(buffers) + 1)

    def work(buffer: RDMABuffer) -> None:
        here = bytearray(len(buffer))
        buffer.read_into(here).get()
        started.wait()
        while True:
            buffer.read_into(here).get()

    for buffer in buffers:
        threading.Thread(target=work, args=(buffer,), daemon=True).start()
    started.wait()
    keep.extend(buffer.read_into(bytearray(len(buffer))) for buffer in buffers for _ in range(4))

    async def wait_in_vain() -> None:
        tasks = [asyncio.ensure_future(_await(buffer)) for buffer in buffers]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()

    asyncio.run(wait_in_vain())
    keep.append(globals())
    say("done")


async def _await(buffer: RDMABuffer) -> None:
    await buffer.read_into(bytearray(len(buffer)))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
