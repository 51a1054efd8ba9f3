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


def test_processes_are_stopped_at_the_end_of_the_test() -> None:
    procs = LocalProcs()
    pid = proc_pid(procs())
    assert not is_gone(pid)
    procs.close()
    assert is_gone(pid)


def test_processes_can_be_stopped_before_the_end_of_the_test(local_procs: LocalProcs) -> None:
    local_procs().stop().get()


def test_proc_pid_returns_the_pid_of_the_rank(procs: ProcMesh) -> None:
    workers = procs.spawn("workers", Worker)
    assert [
        proc_pid(procs, rank) for rank in range(len(procs))
    ] == workers.pid.call().get().values()
    assert proc_pid(workers, 1) == proc_pid(procs, 1)


def test_a_killed_process_is_reported(local_procs: LocalProcs) -> None:
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


def test_wait_until_returns_the_first_true_value() -> None:
    values = iter([0, 0, 7])
    assert wait_until(lambda: next(values)) == 7


def test_wait_until_fails_after_its_deadline() -> None:
    with pytest.raises(AssertionError, match=r"did not become true in 0\.01 s"):
        wait_until(lambda: False, deadline=0.01)
