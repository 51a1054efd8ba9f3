"""A job outlives its program: another one that proves the same identity goes on with it."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lost_program import LostProgram
from workers import WorkerProcess

from mesh_core import (
    ActorFailed,
    Credentials,
    HostDied,
    ProcDied,
    TakeOverError,
    attach_to_workers,
    configured,
    shutdown_context,
    take_over,
)
from kept_actors import Counter, Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("fresh_job")

LEASE_S = 1.0


@pytest.fixture
def fresh_job() -> Iterator[None]:
    """A program is the root of one job at a time."""
    yield
    shutdown_context().get()


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    """Of the controller, who keeps them in a folder; those of the workers are in another."""
    made = Credentials.create()
    made.save(tmp_path / "controller")
    made.issue(role="worker", name="host").save(tmp_path / "worker")
    return made


@pytest.fixture
def workers(credentials: Credentials, tmp_path: Path) -> Iterator[list[WorkerProcess]]:
    """Two machines, as far as one can tell from here."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(WorkerProcess(credentials=tmp_path / "worker")) for _ in range(2)
        ]


def lose(folder: Path, workers: list[WorkerProcess], code: str) -> LostProgram:
    """Runs a program on the workers until it is ready."""
    return LostProgram(folder, [worker.address for worker in workers], code, LEASE_S)


SPAWN = """
    procs = hosts.spawn_procs({"procs": 2}, name="trainers")
    counters = procs.spawn("counter", Counter, 10)
    counters.add.call(5).get()
"""


def test_a_successor_finds_what_there_was_as_it_was(
    workers: list[WorkerProcess], credentials: Credentials, tmp_path: Path
) -> None:
    with lose(tmp_path, workers, SPAWN) as program:
        program.kill()
        job = take_over([worker.address for worker in workers], credentials=credentials)
        assert job.generation == 1
        assert job.hosts.extent == {"hosts": 2}
        assert job.procs["trainers"].extent == {"hosts": 2, "procs": 2}
        assert job.actors["counter"].extent == {"hosts": 2, "procs": 2}
        counters = job.actor("counter", Counter)
        assert counters.add.call(1).get(timeout=30).values() == [16, 16, 16, 16]
        assert job.failures == ()
