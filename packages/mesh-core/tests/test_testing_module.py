"""The support for tests that Mesh offers to users."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from mesh_core import Actor, ProcDied, endpoint
from mesh_core.testing import LocalProcs, kill_proc, local_procs, proc_pid, wait_until

if TYPE_CHECKING:
    from mesh_core import ProcMesh

__all__ = ["local_procs"]


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


def is_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_fixture_spawns_processes(local_procs: LocalProcs) -> None:
    workers = local_procs({"gpus": 2}).spawn("workers", Worker)
    assert len(set(workers.pid.call().get().values())) == 2


def test_processes_end_with_the_test() -> None:
    procs = LocalProcs()
    pid = proc_pid(procs())
    assert not is_gone(pid)
    procs.close()
    assert is_gone(pid)


def test_processes_may_have_ended_before(local_procs: LocalProcs) -> None:
    local_procs().stop().get()


def test_pid_is_that_of_the_rank(procs: ProcMesh) -> None:
    workers = procs.spawn("workers", Worker)
    assert [
        proc_pid(procs, rank) for rank in range(len(procs))
    ] == workers.pid.call().get().values()
    assert proc_pid(workers, 1) == proc_pid(procs, 1)


def test_killed_process_is_noticed(local_procs: LocalProcs) -> None:
    procs = local_procs({"gpus": 2})
    workers = procs.spawn("workers", Worker)
    pid = kill_proc(workers, 1)
    with pytest.raises(ProcDied) as caught:
        workers.slice(gpus=1).pid.call_one().get(timeout=10)
    assert (caught.value.pid, caught.value.signal) == (pid, signal.SIGKILL)
    assert workers.slice(gpus=0).pid.call_one().get() != pid


def test_other_signals_can_be_sent(local_procs: LocalProcs) -> None:
    procs = local_procs()
    worker = procs.spawn("worker", Worker)
    kill_proc(procs, signal=signal.SIGTERM)
    with pytest.raises(ProcDied):
        worker.pid.call_one().get(timeout=10)


def test_wait_until_gives_what_came_true() -> None:
    values = iter([0, 0, 7])
    assert wait_until(lambda: next(values)) == 7


def test_wait_until_gives_up() -> None:
    with pytest.raises(AssertionError, match=r"did not become true in 0\.01 s"):
        wait_until(lambda: False, deadline=0.01)
