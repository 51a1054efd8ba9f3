"""If the query server of a host is lost during a query, the other hosts reply in time."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_actors import LIMIT_S, Worker
from recorded_program import config
from workers import WorkerProcess, workers

from mesh_core import attach_to_workers, configured, shutdown_context
from mesh_core.testing import kill_proc, proc_pid, wait_until
from mesh_telemetry import QueryResult, Telemetry

SQL = "select host, proc, count(*) as n from spans group by host, proc"
#: The spans of each worker, which is called once.
SPANS = 2
ANSWER_S = 4.0
# Time for the remaining work after a timeout, on a busy machine.
SLACK_S = 12.0
FEW, MANY = range(3), range(3, 20)


@pytest.fixture
def two() -> Iterator[list[WorkerProcess]]:
    # In a new job, hosts are numbered from 1.
    shutdown_context().get(LIMIT_S)
    # A host that is only slow must not be declared dead.
    with configured(heartbeat_s=5.0), workers(2) as started:
        yield started
        shutdown_context().get(LIMIT_S)


class Asker:
    """Sends queries continuously from a thread until it is stopped."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._is_over = False
        self.answers: list[tuple[float, QueryResult]] = []
        self.errors: list[BaseException] = []
        self.asking = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            while not self._is_over:
                began = time.monotonic()
                self.asking.set()
                answer = self._telemetry.query(SQL, timeout=ANSWER_S)
                self.answers.append((time.monotonic() - began, answer))
        except BaseException as error:
            self.errors.append(error)

    def stop(self) -> None:
        self._is_over = True
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        assert self.errors == []


def failed_of(answer: QueryResult) -> set[str]:
    return {failure.host.rpartition("/")[2] for failure in answer.coverage.failed}


def rows_of(answer: QueryResult) -> dict[str, int]:
    """Return the number of rows of each worker."""
    counts: Counter[str] = Counter()
    for row in answer.table.to_pylist():
        counts[row["proc"].partition(".")[0]] += row["n"]
    return counts


def check(asker: Asker, lost: set[str]) -> None:
    """Check that every reply arrived in time, and reports only lost hosts as failed.

    The rows of a lost host may come from the copy on another host, but never twice.
    """
    for took_s, answer in asker.answers:
        assert took_s < ANSWER_S + SLACK_S
        assert failed_of(answer) <= lost
        found = rows_of(answer)
        assert {"1", "2"} - failed_of(answer) <= found.keys() <= {"1", "2"}
        assert all(count <= SPANS for count in found.values())
        assert {name.rpartition("/")[2] for name in answer.coverage.queried} == {"0", "1", "2"}


def lose_in_the_middle(telemetry: Telemetry, rng: random.Random) -> None:
    """Kill or stop the query server of a host at a random time during a query."""
    handles = telemetry._started().hosts.call_one().get(LIMIT_S)
    chosen = rng.choice([1, 2])
    handle = next(each for each in handles if each.number == chosen)
    assert handle.rows is not None
    is_killed = rng.random() < 0.7
    asker = Asker(telemetry)
    wait_until(lambda: asker.answers, LIMIT_S)
    asker.asking.clear()
    assert asker.asking.wait(LIMIT_S)
    threading.Event().wait(rng.uniform(0.0, 0.03))
    pid = proc_pid(handle.rows)
    kill_proc(handle.rows, 0, signal.SIGKILL if is_killed else signal.SIGSTOP)
    number = str(handle.number)
    try:
        wait_until(lambda: number in failed_of(asker.answers[-1][1]) or asker.errors, LIMIT_S)
    finally:
        if not is_killed:
            os.kill(pid, signal.SIGCONT)
    # The query server is restarted, with all rows.
    wait_until(lambda: not failed_of(asker.answers[-1][1]), LIMIT_S)
    asker.stop()
    check(asker, {number})


def faults(place: Path, two: list[WorkerProcess], seeds: range) -> None:
    hosts = attach_to_workers([worker.address for worker in two])
    with Telemetry(config(place)) as telemetry:
        actors: Any = hosts.spawn_procs(name="far").spawn("workers", Worker)
        actors.work.call(1).get(LIMIT_S)
        assert telemetry.query(SQL, timeout=LIMIT_S).coverage.is_full
        for seed in seeds:
            lose_in_the_middle(telemetry, random.Random(seed))


@pytest.mark.slow
def test_queries_survive_the_loss_of_a_query_server(place: Path, two: list[WorkerProcess]) -> None:
    faults(place, two, FEW)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_queries_survive_many_losses_of_query_servers(
    place: Path, two: list[WorkerProcess]
) -> None:
    faults(place, two, MANY)


def host_is_lost(place: Path, seed: int) -> None:
    rng = random.Random(seed)
    shutdown_context().get(LIMIT_S)
    # Nothing calls the lost actors: the failure must not end the program before the test does.
    with configured(heartbeat_s=1.5, failure_grace_s=LIMIT_S), workers(2) as two:
        hosts = attach_to_workers([worker.address for worker in two])
        with Telemetry(config(place)) as telemetry:
            procs = hosts.spawn_procs(name="far")
            actors: Any = procs.spawn("workers", Worker, restart="temporary")
            actors.work.call(1).get(LIMIT_S)
            asker = Asker(telemetry)
            wait_until(lambda: asker.answers, LIMIT_S)
            asker.asking.clear()
            assert asker.asking.wait(LIMIT_S)
            threading.Event().wait(rng.uniform(0.0, 0.03))
            lost = rng.choice([1, 2])
            two[lost - 1].power_off()
            wait_until(lambda: failed_of(asker.answers[-1][1]) or asker.errors, LIMIT_S)
            asker.stop()
            check(asker, {str(lost)})
        shutdown_context().get(LIMIT_S)
    # The next program on the host removes the files of the lost one.
    with Telemetry(config(place)):
        pass


def test_queries_survive_the_loss_of_a_host(place: Path) -> None:
    host_is_lost(place, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_queries_survive_many_losses_of_hosts(place: Path) -> None:
    for seed in range(1, 20):
        host_is_lost(place, seed)
