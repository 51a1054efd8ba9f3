"""A machine that returns after it was declared dead is rejected, and leaves the job."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from host_recorder import wait_until_gone
from test_host_replace import LIMIT_S, Member
from worker_fixtures import attached, running_workers
from worker_fixtures import frequent_heartbeats as frequent_heartbeats
from worker_fixtures import fresh_job as fresh_job
from workers import WorkerProcess

from mesh_core import (
    Actor,
    HostDied,
    configured,
    endpoint,
    shutdown_context,
    this_host,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("frequent_heartbeats")


class Sink(Actor):
    """Records its callers."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    @endpoint
    def note(self, pid: int) -> None:
        """Record the pid of the caller."""
        self.heard.append(pid)

    @endpoint
    def all(self) -> list[int]:
        """Return the pids of all callers."""
        return self.heard


class Teller(Member):
    """Sends messages continuously."""

    @endpoint
    def tell(self, sink: Any) -> None:
        """Send its pid forever."""
        while True:
            sink.note.broadcast(os.getpid())


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    """Two workers, which look like two machines."""
    with running_workers(2) as started:
        yield started


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """Declare a stopped machine dead after a short time."""
    with configured(unresponsive_timeout_s=1.0):
        yield


def silence(worker: WorkerProcess, mesh: Any) -> None:
    """Stop a machine until it is declared dead."""
    pending = mesh.never.call_one()
    worker.signal_all(signal.SIGSTOP)
    with pytest.raises(HostDied):
        pending.get(timeout=LIMIT_S)


def test_a_returning_machine_terminates_its_processes(workers: list[WorkerProcess]) -> None:
    # The host would otherwise wait for its owner much longer than the test.
    with configured(host_lease_s=600):
        mesh = attached(workers).spawn_procs({"procs": 2}).spawn("member", Member)
    pids = mesh.slice(hosts=1).pid.call().get(timeout=LIMIT_S).values()
    silence(workers[1], mesh.slice(hosts=1, procs=0))
    workers[1].signal_all(signal.SIGCONT)
    wait_until_gone(pids)
    with pytest.raises(HostDied):
        mesh.slice(hosts=1).echo.call(1).get(timeout=LIMIT_S)
    assert mesh.slice(hosts=0).echo.call(1).get(timeout=LIMIT_S).values() == [1, 1]


def test_a_returning_machine_can_be_attached_again(workers: list[WorkerProcess]) -> None:
    with configured(host_lease_s=600):
        hosts = attached(workers)
        mesh = hosts.spawn_procs({"procs": 1}).spawn("member", Member)
    (pid,) = mesh.slice(hosts=1).pid.call().get(timeout=LIMIT_S).values()
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [1, 1]
    silence(workers[1], mesh.slice(hosts=1))
    workers[1].signal_all(signal.SIGCONT)
    hosts.replace(1)
    assert mesh.add.call().get(timeout=LIMIT_S).values() == [2, 1]
    assert mesh.slice(hosts=1).pid.call_one().get(timeout=LIMIT_S) != pid
    wait_until_gone([pid])


def test_a_returning_machine_serves_the_next_job(workers: list[WorkerProcess]) -> None:
    with configured(host_lease_s=600):
        mesh = attached(workers).spawn_procs({"procs": 1}).spawn("member", Member)
    mesh.echo.call(0).get(timeout=LIMIT_S)
    (pid,) = mesh.slice(hosts=1).pid.call().get(timeout=LIMIT_S).values()
    silence(workers[1], mesh.slice(hosts=1))
    workers[1].signal_all(signal.SIGCONT)
    wait_until_gone([pid])
    shutdown_context().get()
    again = attached(workers).spawn_procs({"procs": 1}).spawn("member", Member)
    assert again.echo.call(2).get(timeout=LIMIT_S).values() == [2, 2]


def test_messages_from_a_replaced_machine_are_rejected(
    workers: list[WorkerProcess],
) -> None:
    with WorkerProcess() as other:
        hosts = attached(workers)
        procs = hosts.spawn_procs({"procs": 2})
        mesh = procs.spawn("teller", Teller)
        sinks = [
            this_host().spawn_procs().spawn("sink", Sink),
            procs.slice(hosts=0, procs=0).spawn("sink", Sink),
        ]
        old, _ = mesh.slice(hosts=1).pid.call().get(timeout=LIMIT_S).values()
        for sink, teller in zip(sinks, range(2), strict=True):
            mesh.slice(hosts=1, procs=teller).tell.broadcast(sink)
            while not heard(sink):
                os.sched_yield()
        silence(workers[1], mesh.slice(hosts=1, procs=1))
        hosts.replace(1, other.address)
        before = [len(heard(sink)) for sink in sinks]
        workers[1].signal_all(signal.SIGCONT)
        wait_until_gone([old])
        assert [len(heard(sink)) for sink in sinks] == before
        new, _ = mesh.slice(hosts=1).pid.call().get(timeout=LIMIT_S).values()
        mesh.slice(hosts=1, procs=0).tell.broadcast(sinks[0])
        while new not in heard(sinks[0]):
            os.sched_yield()
        shutdown_context().get()


def heard(sink: Any) -> list[int]:
    """Return the pids that the sink has recorded."""
    pids: list[int] = sink.all.call_one().get(timeout=LIMIT_S)
    return pids
