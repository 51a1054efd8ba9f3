"""Services in special situations: other hosts, dying owners, exiting programs, deadlocks."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from host_recorder import wait_until_gone
from service_actors import Caller, Worker
from whole_program import run
from workers import WorkerProcess

from mesh_core import (
    Actor,
    DeadlockError,
    Port,
    SupervisionError,
    attach_to_workers,
    configured,
    endpoint,
    shutdown_context,
    this_host,
)
from mesh_core.services import Service
from mesh_core.testing import kill_proc, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def machines() -> Iterator[list[WorkerProcess]]:
    """Two workers, which look like two machines."""
    with ExitStack() as stack:
        yield [stack.enter_context(WorkerProcess()) for _ in range(2)]
        shutdown_context().get()


class Placed(Worker):
    """Returns the name of its machine."""

    @endpoint
    def parent(self) -> int:
        return os.getppid()


def test_replicas_are_spread_over_hosts_and_move_away_from_a_dead_host(
    machines: list[WorkerProcess],
) -> None:
    with configured(heartbeat_s=0.5):
        hosts = attach_to_workers([machine.address for machine in machines])
        options = Service.options(num_replicas=4, hosts=hosts, retries={"double": 5})
        with options.spawn("placed", Placed) as service:
            service.settled().get(timeout=30)
            parents = service.handle.parent.fanout().get(timeout=30).values()
            assert sorted(parents.count(parent) for parent in set(parents)) == [2, 2]
            pending = [service.handle.double.route(n, 0.02) for n in range(40)]
            machines[1].signal_all(signal.SIGKILL)
            assert [answer.get(timeout=30) for answer in pending] == [2 * n for n in range(40)]
            wait_until(lambda: service.status().get().losses >= 2, 30)
            service.settled().get(timeout=30)
            left = service.handle.parent.fanout().get(timeout=30).values()
            assert len(left) == 4
            assert len(set(left)) == 1
            assert set(left) < set(parents)


def test_a_replica_can_span_several_hosts(machines: list[WorkerProcess]) -> None:
    hosts = attach_to_workers([machine.address for machine in machines])
    options = Service.options(procs={"gpus": 2}, hosts=hosts, hosts_per_replica=2)
    with options.spawn("wide", Placed) as service:
        parents = service.handle.parent.call().get(timeout=30)
        assert parents.sizes == {"replicas": 1, "hosts": 2, "gpus": 2}
        assert len(set(parents.values())) == 2


class Keeper(Actor):
    """Owns a service in a separate process."""

    def __init__(self) -> None:
        self.service = Service.options(num_replicas=2).spawn("owned", Worker)

    @endpoint
    def owned(self) -> Service[Worker]:
        self.service.initialized.get()
        return self.service

    @endpoint
    async def blocks_its_loop(self) -> int:
        return self.service.handle.pid.fanout().get().values()[0]

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def test_calls_fail_and_replicas_exit_when_the_owner_dies() -> None:
    procs = this_host().spawn_procs({"n": 2})
    keeper = procs.slice(n=0).spawn("keeper", Keeper)
    service = keeper.owned.call_one().get()
    pids = service.handle.pid.fanout().get().values()
    assert service.handle.double.route(2).get() == 4
    caller = procs.slice(n=1).spawn("caller", Caller, service.handle)
    caller.doubles.call_one(3).get()
    waiting = [service.handle.double.route(1, 30.0) for _ in range(2)]
    kill_proc(procs, 0)
    for answer in waiting:
        assert isinstance(answer.exception(timeout=20), SupervisionError)
    with pytest.raises(SupervisionError):
        service.resize(3).get(timeout=20)
    with pytest.raises(SupervisionError):
        wait_until(lambda: service.handle.double.route(2).get(timeout=20) is None)
    with pytest.raises(SupervisionError):
        caller.doubles.call_one(3).get(timeout=20)
    wait_until_gone(pids)
    assert keeper.pid.call_one().exception() is not None
    procs.stop().exception()


def test_a_blocking_wait_on_its_own_event_loop_is_refused() -> None:
    procs = this_host().spawn_procs()
    keeper = procs.spawn("keeper", Keeper)
    keeper.owned.call_one().get()
    with pytest.raises(DeadlockError, match="await the future"):
        keeper.blocks_its_loop.call_one().get()
    procs.stop().get()


class Asker(Actor):
    """Calls a service that calls it back."""

    def __init__(self) -> None:
        self.service = Service.spawn("answerers", Answerer)

    @endpoint
    def ask(self, me: Any) -> int:
        return self.service.handle.answer.route(me).get()

    @endpoint
    def number(self) -> int:
        return 1


class Answerer(Actor):
    """Calls back, or replies later."""

    @endpoint
    def answer(self, asker: Asker) -> int:
        return asker.number.call_one().get()

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[str], word: str) -> None:
        port.send(word)


def test_a_deadlock_through_a_service_is_detected() -> None:
    procs = this_host().spawn_procs()
    asker = procs.spawn("asker", Asker)
    with configured(deadlock_probe_s=0.1), pytest.raises(DeadlockError, match="in a cycle"):
        asker.ask.call_one(asker).get(timeout=20)
    procs.stop().get()


def test_an_endpoint_can_reply_on_a_port() -> None:
    with Service.spawn("answerers", Answerer) as service:
        assert service.handle.later.route("soon").get() == "soon"


@pytest.mark.parametrize(
    "rest",
    [
        "pass",
        "service.stop().get()",
        "call = service.handle.sleep.route(0.3)",
        "service.session().__enter__().add.route().get()",
        "shutdown_context().get()",
        "service.resize(4)",
        "again = Service.options(num_replicas=3).spawn('again', Worker)",
    ],
)
def test_a_program_with_a_service_exits_normally(tmp_path: Path, rest: str) -> None:
    start = """
    service = Service.options(num_replicas=2).spawn("workers", Worker)
    service.handle.add.route().get()
"""
    ended = run(tmp_path, f"{start}\n    {rest}\n")
    assert ended.status == 0, ended.err
    assert ended.seconds < 30
