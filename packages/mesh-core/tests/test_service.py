"""Services from the callers' view: routing, fan-out, handles in messages, stopping."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from host_recorder import wait_until_gone
from service_actors import Caller, Holder, Unstartable, Worker

from mesh_core import (
    Actor,
    ActorError,
    ActorFailed,
    CallCancelled,
    DeadlineExceeded,
    MeshStopped,
    configured,
    endpoint,
    this_host,
)
from mesh_core.services import Service, ServiceOverloaded
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh


@pytest.fixture(scope="module")
def service() -> Iterator[Service[Worker]]:
    with Service.options(num_replicas=3).spawn("workers", Worker) as service:
        service.initialized.get()
        yield service


@pytest.fixture(scope="module")
def workers(service: Service[Worker]) -> Worker:
    wait_until(lambda: len(set(service.handle.pid.fanout().get().values())) == 3)
    return service.handle


def test_route_returns_the_result_of_one_replica(workers: Worker) -> None:
    assert workers.double.route(21).get() == 42
    assert workers.greet.route(name="you").get() == "hello you"


def test_sequential_calls_are_spread_over_the_replicas() -> None:
    with Service.options(num_replicas=3).spawn("workers", Worker) as service:
        service.settled().get()
        service.handle.pid.fanout().get()
        pids = [service.handle.pid.route().get() for _ in range(9)]
        assert sorted(pids.count(pid) for pid in set(pids)) == [3, 3, 3]


def test_calls_are_routed_to_the_least_loaded_replica() -> None:
    options = Service.options(num_replicas=3)
    with options.spawn("holders", Holder) as service, service.session() as busy:
        service.settled().get()
        service.handle.pid.fanout().get()
        busy_pid = busy.pid.route().get()
        pending = [busy.hold.route() for _ in range(4)]
        pids = [service.handle.pid.route() for _ in range(6)]
        assert busy_pid not in {pid.get() for pid in pids}
        busy.release.route().get()
        assert [answer.get() for answer in pending] == [busy_pid] * 4


def test_fanout_returns_one_result_per_replica(workers: Worker) -> None:
    pids = workers.pid.fanout().get()
    assert pids.sizes == {"replicas": 3}
    assert len(set(pids.values())) == 3


def test_fanout_and_a_later_call_arrive_in_order(workers: Worker) -> None:
    told = workers.remember.fanout("weights")
    assert "weights" in workers.remember.route("question").get()
    assert all("weights" in memory for memory in told.get().values())


def test_mesh_verbs_on_a_service_address_replicas(workers: Worker) -> None:
    assert workers.double.choose(1).get() == 2
    assert workers.double.call_one(1).get() == 2
    assert workers.double.call(1).get().values() == [2, 2, 2]
    workers.remember.broadcast("news")
    assert all("news" in memory for memory in workers.remember.fanout("x").get().values())
    with pytest.raises(TypeError, match="no stream"):
        workers.pid.stream()


def test_service_verbs_work_on_a_mesh(procs: ProcMesh) -> None:
    mesh = procs.spawn("mesh", Worker)
    assert mesh.double.route(2).get() == 4
    assert mesh.double.fanout(2).get().values() == [4] * 4
    mesh.stop().get()


def test_an_endpoint_error_keeps_its_type_and_loses_no_replica(
    service: Service[Worker], workers: Worker
) -> None:
    with pytest.raises(ValueError, match="this is refused") as caught:
        workers.refuse.route().get()
    assert isinstance(caught.value, ActorError)
    with pytest.raises(ValueError, match="this is refused") as caught:
        workers.refuse.fanout().get()
    assert len(caught.value.failures) == 3  # type: ignore[attr-defined]
    found = workers.refuse.options(return_exceptions=True).fanout().get()  # type: ignore[call-arg]
    assert [type(one.exception) for one in found.values()] == [ValueError] * 3  # type: ignore[attr-defined]
    assert service.status().get().losses == 0


def test_arguments_are_checked_at_the_call(workers: Worker) -> None:
    with pytest.raises(TypeError, match="missing"):
        workers.double.route()  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="not an endpoint of Worker"):
        workers.memory  # noqa: B018
    with pytest.raises(AttributeError, match="on the service"):
        workers.stop()


def test_calls_can_be_awaited(workers: Worker) -> None:
    async def many() -> list[int]:
        return await asyncio.gather(*(workers.double.route(n) for n in range(200)))

    assert asyncio.run(many()) == [2 * n for n in range(200)]


def test_a_call_fails_when_its_timeout_expires(workers: Worker) -> None:
    with pytest.raises(DeadlineExceeded, match="double"):
        workers.double.options(timeout=0.05).route(1, 0.5).get()
    with pytest.raises(TimeoutError):
        workers.double.route(1, 1.0).get(timeout=0.01)


def test_handle_works_in_other_processes(workers: Worker, procs: ProcMesh) -> None:
    callers = procs.spawn("callers", Caller, workers)
    expected = set(workers.pid.fanout().get().values())
    for pids in callers.pids.call(12).get().values():
        assert set(pids) <= expected
        assert len(set(pids)) > 1
    assert callers.doubles.call(5).get().values() == [[0, 2, 4, 6, 8]] * 4
    callers.stop().get()


def test_callers_in_other_processes_avoid_a_busy_replica(proc: ProcMesh) -> None:
    options = Service.options(num_replicas=2)
    with options.spawn("holders", Holder) as service, service.session() as busy:
        service.initialized.get()
        other: Any = proc.spawn("caller", Caller, service.handle)
        pending = [busy.hold.route() for _ in range(6)]
        busy_pid = busy.pid.route().get()
        # The other process is notified of load that it has not sent itself.
        wait_until(lambda: busy_pid not in other.pids.call_one(4).get())
        assert all(not answer.done() for answer in pending)
        service.handle.release.fanout().get()
        assert [answer.get() for answer in pending] == [busy_pid] * 6
        other.stop().get()


def test_replica_of_several_processes_is_called_as_one() -> None:
    options = Service.options(num_replicas=2, procs={"tp": 2})
    with options.spawn("pairs", Worker) as service:
        service.initialized.get()
        wait_until(lambda: len(service.handle.pid.fanout().get()) == 2)
        assert service.handle.rank.route().get() == 0
        ranks = service.handle.rank.call().get()
        assert ranks.sizes == {"replicas": 2, "tp": 2}
        assert ranks.values() == [0, 1, 0, 1]


def test_calls_are_queued_up_to_a_limit_and_then_refused() -> None:
    options = Service.options(outstanding_max=2, queue_len_max=2)
    with options.spawn("holders", Holder) as service:
        holders = service.handle
        service.initialized.get()
        first = holders.pid.route().get()
        under_way = [holders.hold.route() for _ in range(4)]
        with pytest.raises(ServiceOverloaded, match="is overloaded: 1 replicas have 2 calls") as no:
            holders.hold.route()
        assert (no.value.outstanding_max, no.value.queue_len_max) == (2, 2)
        assert holders.held_count.fanout().get().values() == [2]
        # A cancelled call leaves the queue, and so does a call whose deadline has passed.
        assert under_way.pop().cancel()
        with pytest.raises(DeadlineExceeded):
            wait_until(lambda: _try(lambda: holders.hold.options(timeout=0.1).route())).get()
        holders.release.fanout().get()
        assert [answer.get() for answer in under_way] == [first] * 3


def test_an_overload_error_raised_in_an_actor_reaches_its_caller(workers: Worker) -> None:
    with pytest.raises(ServiceOverloaded, match="another service") as caught:
        workers.overload.route().get()
    assert (caught.value.outstanding_max, caught.value.queue_len_max) == (2, 3)


def _try(call: Any) -> Any:
    try:
        return call()
    except ServiceOverloaded:
        return None


def test_a_cancelled_call_is_cancelled_in_the_replica() -> None:
    with Service.spawn("holders", Holder) as service:
        held = service.handle.hold.route()
        wait_until(lambda: service.handle.held_count.route().get() == 1)
        assert held.cancel()
        with pytest.raises(CallCancelled):
            held.get()
        wait_until(lambda: service.handle.held_count.route().get() == 0)


def test_done_callbacks_run_even_for_queued_calls() -> None:
    with Service.options(outstanding_max=1).spawn("workers", Worker) as service:
        values: list[int] = []
        for n in range(20):
            answer = service.handle.double.route(n)
            answer.add_done_callback(lambda done: values.append(done.get()))
        wait_until(lambda: len(values) == 20)
        assert sorted(values) == [2 * n for n in range(20)]


def test_the_call_timeout_does_not_apply_to_internal_calls_of_a_service() -> None:
    with configured(call_timeout_s=0.02):
        service = Service.options(num_replicas=2).spawn("workers", Worker)
        wait_until(lambda: service.handle.double.route(1).exception() is None)
        with pytest.raises(DeadlineExceeded):
            service.handle.double.route(1, 0.3).get()
        wait_until(lambda: service.handle.double.route(2).exception() is None)
        service.stop().get()


def test_dropped_futures_do_not_leave_calls_outstanding() -> None:
    with Service.options(outstanding_max=2).spawn("workers", Worker) as service:
        for n in range(50):
            service.handle.double.route(n)
        assert service.handle.double.route(4).get() == 8
        wait_until(lambda: service.status().get().outstanding == 0)


def test_stop_drains_running_calls_and_refuses_new_ones() -> None:
    service = Service.options(num_replicas=2).spawn("workers", Worker)
    service.initialized.get()
    pids = service.handle.pid.fanout().get().values()
    pending = [service.handle.double.route(n, 0.1) for n in range(4)]
    service.stop().get()
    assert [answer.get() for answer in pending] == [0, 2, 4, 6]
    with pytest.raises(MeshStopped):
        service.handle.pid.route()
    with pytest.raises(MeshStopped):
        service.handle.pid.fanout()
    service.stop().get()
    wait_until_gone(pids)


def test_the_error_of_a_service_that_cannot_start_names_the_reason() -> None:
    service = Service.options(num_replicas=2).spawn("broken", Unstartable, "no weights here")
    waiting = service.handle.pid.route()
    with pytest.raises(ActorFailed, match="no weights here"):
        service.initialized.get()
    with pytest.raises(ActorFailed):
        waiting.get()
    service.stop().exception()


class Owner(Actor):
    """Owns a service, and returns its handle."""

    def __init__(self) -> None:
        self.service = Service.options(num_replicas=2).spawn("owned", Worker)

    @endpoint
    async def owned(self) -> Service[Worker]:
        await self.service.initialized
        return self.service

    @endpoint
    async def use(self) -> list[int]:
        return [await self.service.handle.double.route(n) for n in range(3)]


def test_service_belongs_to_the_actor_that_spawned_it() -> None:
    procs = this_host().spawn_procs()
    owner = procs.spawn("owner", Owner)
    service = owner.owned.call_one().get()
    assert owner.use.call_one().get() == [0, 2, 4]
    pids = service.handle.pid.fanout().get().values()
    assert os.getpid() not in pids
    with pytest.raises(ValueError, match="the actor that owns it"):
        service.stop()
    service.resize(1).get()
    owner.stop().get()
    wait_until_gone(pids)
    procs.stop().get()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_replicas": 0}, "num_replicas 0 is not positive"),
        ({"procs": 0}, "procs 0 is not positive"),
        ({"hosts_per_replica": 2}, "exceeds the number of hosts"),
        ({"retries": {"absent": 1}}, "no endpoint 'absent'"),
        ({"queue_len_max": -1}, "0 or more"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Service.options(**options).spawn("never", Worker)


def test_the_actor_class_is_checked_before_anything_starts() -> None:
    with pytest.raises(TypeError, match="too many"):
        Service.spawn("never", Worker, 1, 2, 3)  # type: ignore[call-arg, arg-type]
    with pytest.raises(ValueError, match="not a subclass of Actor"):
        Service.spawn("never", int)  # type: ignore[type-var]
