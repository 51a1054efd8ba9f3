"""If the program of a job is lost, its workers stop its processes and serve the next job."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest
from host_recorder import wait_until_gone
from kept_actors import Counter
from lost_program import ATTACH, LostProgram
from workers import WorkerProcess

from mesh_core import attach_to_workers, shutdown_context

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("fresh_job")

LEASE_S = 1.0
# Time to stop actors in an orderly way and to end processes, on a busy machine.
END_S = 8.0
SPAWN = """
counters = hosts.spawn_procs({"procs": 2}).spawn("counter", Counter, 0)
owners = hosts.spawn_procs().spawn("keeper", Keeper)
owners.ask.call(1).get()
for pid in [*counters.pid.call().get().values(), *owners.pids.call().get().values()[0]]:
    print(pid)
"""


@pytest.fixture
def fresh_job() -> Iterator[None]:
    """Give each test a separate job, because hosts belong to one job."""
    yield
    shutdown_context().get()


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    """A worker, which looks like a machine."""
    with WorkerProcess() as worker:
        yield worker


def use(worker: WorkerProcess) -> None:
    """Run another job on a worker, and release it."""
    mesh = attach_to_workers([worker.address]).spawn_procs().spawn("counter", Counter, 1)
    assert mesh.add.call_one(1).get(timeout=30) == 2
    shutdown_context().get()


def test_a_killed_program_leaves_no_processes_on_its_workers(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    with LostProgram(tmp_path, [worker.address], ATTACH, SPAWN, lease_s=LEASE_S) as program:
        pids = [int(line) for line in program.said]
        assert len(pids) == 4
        sessions = worker.sessions()
        started = time.monotonic()
        program.kill()
        wait_until_gone([*pids, *sessions])
        assert time.monotonic() - started < LEASE_S + END_S
        assert list(program.temporary.iterdir()) == []
    use(worker)


def test_a_program_that_is_paused_for_too_long_loses_its_hosts(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    with LostProgram(tmp_path, [worker.address], ATTACH, SPAWN, lease_s=LEASE_S) as program:
        program.signal(signal.SIGSTOP)
        wait_until_gone([int(line) for line in program.said])
        # All resources of the job are released, so the next job does not have to wait.
        use(worker)
        program.signal(signal.SIGCONT)
        assert program.wait() == 1
        # The worker reports the end, unless this takes longer than the heartbeat timeout of the
        # program.
        whys = (
            "its worker reports that",
            "nothing was received from it for three heartbeats",
            "its agent has not replied for",
        )
        assert any(why in program.errors() for why in whys), program.errors()
        use(worker)


def test_a_program_that_is_paused_briefly_continues(worker: WorkerProcess, tmp_path: Path) -> None:
    go_on = """
    print("ready", flush=True)
    signal.sigwait({signal.SIGUSR1})
    print(counters.add.call(3).get().values(), flush=True)
    hosts.shutdown().get()
    os._exit(7)
    """
    with LostProgram(tmp_path, [worker.address], ATTACH, SPAWN, go_on, lease_s=20.0) as program:
        program.signal(signal.SIGSTOP)
        program.signal(signal.SIGUSR1)
        program.signal(signal.SIGCONT)
        assert program.wait() == 7, program.errors()
    use(worker)
