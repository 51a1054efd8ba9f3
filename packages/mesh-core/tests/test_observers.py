"""Two sessions on one worker: the program that it serves, and a second one that inspects it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from host_recorder import children, wait_until_gone
from workers import WorkerProcess

from mesh_core import Actor, HostDied, attach_to_workers, configured, endpoint, shutdown_context
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 30.0
# Prints a line for each line of input, as long as its actors reply.
PROGRAM = """
import sys
from mesh_core import Actor, attach_to_workers, endpoint

class Echo(Actor):
    @endpoint
    def echo(self, text: str) -> str:
        return text

actors = attach_to_workers([sys.argv[1]]).spawn_procs({"n": 2}).spawn("echo", Echo)
print(*actors.echo.call("up").get(timeout=30).values(), flush=True)
for line in sys.stdin:
    print(*actors.echo.call(line.strip()).get(timeout=30).values(), flush=True)
"""


class Looker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def wait(self) -> None:
        signal.pause()


class Program:
    """The program that the worker serves."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def hears(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def works(self) -> bool:
        """Return whether its actors reply."""
        assert self._process.stdin is not None
        print("works", file=self._process.stdin, flush=True)
        return self.hears() == "works works"


@contextmanager
def program_on(worker: WorkerProcess) -> Iterator[Program]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, worker.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        program = Program(process)
        assert program.hears() == "up up"
        yield program


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess() as started:
        yield started


def test_an_observer_does_not_disturb_the_program_of_a_worker(worker: WorkerProcess) -> None:
    with program_on(worker) as program:
        lookers = (
            attach_to_workers([worker.address], observer=True).spawn_procs().spawn("l", Looker)
        )
        assert lookers.pid.call_one().get(timeout=LIMIT_S) != os.getpid()
        assert program.works()
        shutdown_context().get(timeout=LIMIT_S)
        assert program.works()


def test_a_worker_with_an_observer_is_free_for_a_program(worker: WorkerProcess) -> None:
    lookers = attach_to_workers([worker.address], observer=True).spawn_procs().spawn("l", Looker)
    first = lookers.pid.call_one().get(timeout=LIMIT_S)
    with program_on(worker) as program:
        assert program.works()
    assert lookers.pid.call_one().get(timeout=LIMIT_S) == first


def test_an_observer_leaves_no_processes_behind(worker: WorkerProcess) -> None:
    before = set(wait_until(worker.sessions, deadline=LIMIT_S))
    lookers = attach_to_workers([worker.address], observer=True).spawn_procs().spawn("l", Looker)
    pid = lookers.pid.call_one().get(timeout=LIMIT_S)
    extra = set(worker.sessions()) - before
    assert len(extra) == 1
    assert pid not in children(*before)
    shutdown_context().get(timeout=LIMIT_S)
    wait_until_gone([pid, *extra])
    # Zombies are children until the worker reaps them.
    wait_until(lambda: set(worker.sessions()) == before, deadline=LIMIT_S)


def test_an_observer_is_notified_when_the_worker_exits() -> None:
    with WorkerProcess() as worker:
        lookers = (
            attach_to_workers([worker.address], observer=True).spawn_procs().spawn("l", Looker)
        )
        pid = lookers.pid.call_one().get(timeout=LIMIT_S)
        waiting = lookers.wait.call_one()
        worker.send(signal.SIGTERM)
        with pytest.raises(HostDied, match="its worker was shut down"):
            waiting.get(timeout=LIMIT_S)
        assert worker.wait() == 0
        wait_until_gone([pid])
        shutdown_context().get(timeout=LIMIT_S)


@pytest.mark.timeout(120)
def test_a_worker_serves_many_observers_and_refuses_more_than_its_limit(
    worker: WorkerProcess,
) -> None:
    for _ in range(16):
        hosts = attach_to_workers([worker.address], observer=True)
        assert hosts.initialized.get(timeout=LIMIT_S)
    with configured(attach_timeout_s=0.1):
        refused = attach_to_workers([worker.address], observer=True)
    with pytest.raises(HostDied, match="already serves 16 additional programs"):
        refused.initialized.get(timeout=LIMIT_S)
    shutdown_context().get(timeout=LIMIT_S)
    wait_until(lambda: len(worker.sessions()) == 1, deadline=LIMIT_S)


@pytest.mark.parametrize("kept", [{"standby": 1}, {"orphan_grace_s": 5.0}])
def test_an_observer_cannot_reserve_workers(kept: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="an additional session cannot reserve workers"):
        attach_to_workers(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], observer=True, **kept)  # type: ignore[arg-type]
