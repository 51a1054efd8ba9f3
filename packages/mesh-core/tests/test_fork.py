"""An endpoint that forks: the child exits as it chooses, and the parent continues."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mesh_core import Actor, Channel, ProcMesh, endpoint, this_host

LIMIT_S = 30.0


def leave_by_exit() -> None:
    sys.exit(7)


def leave_by_os_exit() -> None:
    os._exit(7)


def leave_by_returning() -> None:
    pass


def leave_by_raising() -> None:
    raise RuntimeError("in the child")


def leave_after_use_of_the_job() -> None:
    """Use objects of the parent's job, and exit with status 7 if all uses are refused."""
    refused = 0
    for use in (lambda: Forker.peer.pid.call_one(), lambda: Forker.port.send(1)):
        try:
            use()
        except Exception:
            refused += 1
    sys.exit(7 if refused == 2 else 1)


class Forker(Actor):
    """Forks in every way."""

    peer: Any = None
    port: Any = None

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def meet(self, peer: Forker) -> int:
        Forker.peer = peer
        Forker.port, self.receiver = Channel[Any].open()
        return peer.pid.call_one().get()

    @endpoint
    def fork(self, leave: Any) -> int:
        """Return the exit status of a child that exits by `leave`."""
        mine = Channel[Any].open()
        pid = os.fork()
        if pid == 0:
            # The child has copies of all objects of the endpoint.
            del mine
            leave()
            return -1
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @endpoint
    def fork_process(self) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=leave_by_exit)
        process.start()
        process.join()
        return process.exitcode

    @endpoint
    def run_program(self) -> str:
        command = [sys.executable, "-c", "print('ran')"]
        done = subprocess.run(
            command, preexec_fn=lambda: None, check=True, capture_output=True, text=True
        )
        return done.stdout


class AsyncForker(Actor):
    """Forks in a coroutine, and in a plain endpoint next to coroutines."""

    @endpoint
    async def fork(self, leave: Any) -> int:
        return fork_and_wait(leave)

    @endpoint
    def fork_plain(self, leave: Any) -> int:
        return fork_and_wait(leave)


def fork_and_wait(leave: Any) -> int:
    pid = os.fork()
    if pid == 0:
        leave()
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


ENDS = {
    leave_by_exit: 7,
    leave_by_os_exit: 7,
    leave_by_returning: 0,
    leave_by_raising: 1,
}


@pytest.fixture(scope="module")
def pair() -> Iterator[ProcMesh]:
    with this_host().spawn_procs({"n": 2}, name="forks") as procs:
        yield procs


@pytest.mark.parametrize("leave", ENDS, ids=lambda leave: leave.__name__)
def test_a_child_forked_by_an_endpoint_exits_with_its_own_status(
    pair: ProcMesh, leave: Any
) -> None:
    mesh = pair.spawn("forker", Forker)
    forker, peer = mesh.slice(n=0), mesh.slice(n=1)
    other = forker.meet.call_one(peer).get(timeout=LIMIT_S)
    for _ in range(3):
        assert forker.fork.call_one(leave).get(timeout=LIMIT_S) == ENDS[leave]
        # The connections of the parent are intact.
        assert forker.meet.call_one(peer).get(timeout=LIMIT_S) == other


@pytest.mark.parametrize("leave", ENDS, ids=lambda leave: leave.__name__)
def test_a_child_forked_by_an_async_actor_exits_with_its_own_status(
    pair: ProcMesh, leave: Any
) -> None:
    forker = pair.slice(n=0).spawn("forker", AsyncForker)
    for _ in range(2):
        assert forker.fork.call_one(leave).get(timeout=LIMIT_S) == ENDS[leave]
        assert forker.fork_plain.call_one(leave).get(timeout=LIMIT_S) == ENDS[leave]


def test_a_child_cannot_use_the_connections_of_its_parent(pair: ProcMesh) -> None:
    mesh = pair.spawn("forker", Forker)
    forker, peer = mesh.slice(n=0), mesh.slice(n=1)
    other = forker.meet.call_one(peer).get(timeout=LIMIT_S)
    assert forker.fork.call_one(leave_after_use_of_the_job).get(timeout=LIMIT_S) == 7
    assert forker.meet.call_one(peer).get(timeout=LIMIT_S) == other


def test_multiprocessing_and_subprocesses_work_in_an_endpoint(pair: ProcMesh) -> None:
    mesh = pair.spawn("forker", Forker)
    forker, peer = mesh.slice(n=0), mesh.slice(n=1)
    other = forker.meet.call_one(peer).get(timeout=LIMIT_S)
    for _ in range(3):
        assert forker.fork_process.call_one().get(timeout=LIMIT_S) == 7
        assert forker.run_program.call_one().get(timeout=LIMIT_S) == "ran\n"
        assert forker.meet.call_one(peer).get(timeout=LIMIT_S) == other
