"""Processes that are older than telemetry are recorded when `watch` returns, or it raises."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_actors import LIMIT_S, Worker
from recorded_program import config

from mesh_core import Actor, ProcMesh, RestartPolicy, endpoint, this_host
from mesh_core.testing import kill_proc, proc_pid, wait_until
from mesh_telemetry import Telemetry, TelemetryError


class Bare(Actor):
    """An actor in a process that may be unable to import telemetry."""

    @endpoint
    def add(self, number: int) -> int:
        return number + 1

    @endpoint
    def remove_telemetry(self) -> None:
        sys.modules["mesh_telemetry"] = None  # type: ignore[assignment]

    @endpoint
    def install_telemetry(self) -> None:
        del sys.modules["mesh_telemetry"]


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    """Two processes that are older than telemetry."""
    made = this_host().spawn_procs({"gpus": 2}, name="team")
    yield made
    made.stop().get(LIMIT_S)


@pytest.fixture
def workers(procs: ProcMesh) -> Any:
    made: Any = procs.spawn("workers", Worker)
    assert list(made.add.call(0).get(LIMIT_S).values()) == [1, 1]
    return made


@pytest.fixture
def telemetry(place: Path, workers: Any) -> Iterator[Telemetry]:
    with Telemetry(config(place)) as started:
        yield started


def calls(telemetry: Telemetry) -> list[int]:
    """Return how often each process has served the endpoint."""
    sql = "select count(*) as n from messages where endpoint = 'add' group by proc order by proc"
    counts: list[int] = telemetry.query(sql, timeout=LIMIT_S).table.column("n").to_pylist()
    return counts


def test_calls_after_watch_returns_are_recorded(
    telemetry: Telemetry, procs: ProcMesh, workers: Any
) -> None:
    telemetry.watch(procs, timeout=LIMIT_S)
    workers.add.call(1).get(LIMIT_S)
    assert calls(telemetry) == [1, 1]
    telemetry.watch(procs, timeout=LIMIT_S)
    workers.add.call(2).get(LIMIT_S)
    assert calls(telemetry) == [2, 2]


def test_a_suspended_process_is_reported_and_recorded_later(
    telemetry: Telemetry, procs: ProcMesh, workers: Any
) -> None:
    pid = proc_pid(procs.slice(gpus=1))
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(TelemetryError, match=r"'team'.* not recorded after 0\.5 s"):
            telemetry.watch(procs, timeout=0.5)
        assert telemetry.query("select 1 as one", timeout=LIMIT_S).coverage.is_full
    finally:
        os.kill(pid, signal.SIGCONT)
    telemetry.watch(procs, timeout=LIMIT_S)
    workers.add.call(1).get(LIMIT_S)
    assert calls(telemetry) == [1, 1]


def test_a_dead_process_is_reported_and_the_others_are_recorded(
    telemetry: Telemetry, procs: ProcMesh, workers: Any
) -> None:
    kill_proc(procs.slice(gpus=0))
    for _ in range(2):
        with pytest.raises(TelemetryError, match=r"\(process 0\.\d+: died: killed by SIGKILL"):
            telemetry.watch(procs, timeout=LIMIT_S)
    workers.slice(gpus=1).add.call_one(1).get(LIMIT_S)
    assert calls(telemetry) == [1]


def test_a_process_that_cannot_record_is_reported_with_a_reason_and_retried(
    telemetry: Telemetry, procs: ProcMesh
) -> None:
    bare: Any = procs.spawn("bare", Bare)
    bare.slice(gpus=1).remove_telemetry.call_one().get(LIMIT_S)
    for _ in range(2):
        with pytest.raises(TelemetryError, match=r"\(process 0\.\d+: .*mesh_telemetry.*\): fix"):
            telemetry.watch(procs, timeout=LIMIT_S)
    bare.slice(gpus=1).install_telemetry.call_one().get(LIMIT_S)
    telemetry.watch(procs, timeout=LIMIT_S)
    bare.add.call(1).get(LIMIT_S)
    assert calls(telemetry) == [1, 1]


def test_a_repeatedly_replaced_process_stays_recorded(place: Path, procs: ProcMesh) -> None:
    lasting: Any = procs.spawn("lasting", Worker, restart=RestartPolicy("permanent"))
    lasting.add.call(0).get(LIMIT_S)
    with Telemetry(config(place)) as telemetry:
        telemetry.watch(procs, timeout=LIMIT_S)

        def is_recorded() -> bool:
            before = sum(calls(telemetry))
            asked = lasting.slice(gpus=1).add.call_one(1)
            return asked.exception(LIMIT_S) is None and sum(calls(telemetry)) > before

        # Kills follow each other closely, when a replacement may be taken for the process it
        # replaces.
        for _ in range(3):
            wait_until(is_recorded, LIMIT_S)
            kill_proc(procs.slice(gpus=1))
        wait_until(is_recorded, LIMIT_S)
        telemetry.watch(procs, timeout=LIMIT_S)
        before = sum(calls(telemetry))
        lasting.add.call(1).get(LIMIT_S)
        assert sum(calls(telemetry)) == before + 2


def test_stopped_processes_cannot_be_watched(telemetry: Telemetry) -> None:
    ended = this_host().spawn_procs(name="ended")
    telemetry.watch(ended, timeout=LIMIT_S)
    ended.stop().get(LIMIT_S)
    with pytest.raises(TelemetryError, match=r"'ended'.*is stopped"):
        telemetry.watch(ended, timeout=LIMIT_S)


def test_the_timeout_must_be_positive(telemetry: Telemetry, procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="timeout 0 is not positive"):
        telemetry.watch(procs, timeout=0)
