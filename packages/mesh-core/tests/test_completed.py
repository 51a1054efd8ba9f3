"""`as_completed` and `wait` for any futures, and futures as arguments of calls."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import (
    Actor,
    CallCancelled,
    DeadlockError,
    as_completed,
    concurrent_endpoint,
    endpoint,
    returns_future,
    wait,
)
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from mesh_core import ProcMesh

LIMIT_S = 30.0


class Gates(Actor):
    def __init__(self) -> None:
        self.ports: dict[Any, Any] = {}

    @endpoint(explicit_response_port=True)
    def wait(self, port: Any, name: Any) -> None:
        self.ports[name] = port

    @endpoint
    def open(self, name: Any) -> None:
        self.ports.pop(name).send(name)

    @endpoint
    def value(self, value: Any) -> Any:
        return value

    @endpoint
    def fail(self) -> None:
        raise LookupError("as asked")

    @endpoint
    def add(self, a: Any, b: Any = 0) -> Any:
        return a + b

    @endpoint
    def first_of(self, other: Any, values: list[int]) -> list[int]:
        calls = [other.value.call_one(value) for value in values]
        return sorted(one.get() for one in as_completed(calls))

    @endpoint
    def wait_for_own(self, me: Any) -> Any:
        return wait([me.value.call_one(1)]).done[0].get()

    @concurrent_endpoint
    async def completed(self, other: Any, values: list[int]) -> list[int]:
        calls = [other.value.call_one(value) for value in values]
        return sorted([await one async for one in as_completed(calls)])


@pytest.fixture(scope="module")
def gates(all_procs: ProcMesh) -> Any:
    return all_procs.slice(gpus=0).spawn("gates", Gates)


def names(gates: Any) -> list[Any]:
    return [gates.wait.call_one(name) for name in "abc"]


def test_as_completed_yields_futures_in_the_order_of_completion(gates: Any) -> None:
    found = []
    completed = as_completed(names(gates))
    for name in "bca":
        gates.open.call_one(name).get(LIMIT_S)
        found.append(next(completed).get())
    assert found == ["b", "c", "a"]
    assert list(completed) == []


def test_as_completed_waits_for_many_futures(gates: Any) -> None:
    calls = [gates.value.call_one(n) for n in range(1000)]
    assert sorted(one.get() for one in as_completed(calls)) == list(range(1000))


def test_as_completed_accepts_every_kind_of_future(gates: Any, all_procs: ProcMesh) -> None:
    @returns_future
    async def coroutine() -> str:
        await asyncio.sleep(0)
        return "done"

    other: Any = all_procs.spawn("others", Gates)
    kinds: list[Any] = [coroutine(), other.initialized, other.value.call(1), other.stop()]
    kinds += list(gates.value.stream(2))
    assert set(as_completed(kinds, LIMIT_S)) == set(kinds)


def test_a_failed_future_is_done(gates: Any) -> None:
    (failed,) = as_completed([gates.fail.call_one()])
    assert isinstance(failed.exception(), LookupError)


def test_wait_returns_a_future_that_another_thread_cancels(gates: Any) -> None:
    future, other = gates.wait.call_one("x"), gates.wait.call_one("y")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(wait([future, other], first=1).done))
    waiting.start()
    gates.value.call_one(0).get(LIMIT_S)
    assert other.cancel()
    waiting.join(LIMIT_S)
    assert found == [other]
    assert isinstance(other.exception(), CallCancelled)
    gates.open.call_one("x").get(LIMIT_S)
    assert future.get(LIMIT_S) == "x"


def test_one_timeout_covers_all_futures(gates: Any) -> None:
    waiting, quick = gates.wait.call_one("late"), gates.value.call_one(1)
    quick.get(LIMIT_S)
    completed = as_completed([waiting, quick], timeout=0.2)
    assert next(completed) is quick
    with pytest.raises(TimeoutError, match=r"1 futures are not done after 0\.2 s"):
        next(completed)
    gates.open.call_one("late").get(LIMIT_S)
    assert waiting.get(LIMIT_S) == "late"


def test_an_event_loop_can_iterate_with_async_for(gates: Any) -> None:
    async def main() -> list[int]:
        calls = [gates.value.call_one(n) for n in range(100)]
        return sorted([await one async for one in as_completed(calls)])

    assert asyncio.run(main()) == list(range(100))


def test_blocking_iteration_in_an_event_loop_is_refused(gates: Any) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="use 'async for' with as_completed"):
            next(as_completed([gates.value.call_one(1)]))
        with pytest.raises(RuntimeError, match="use 'async for future in as_completed"):
            wait([gates.value.call_one(1)])

    asyncio.run(main())


def test_wait_returns_after_the_given_number_of_futures(gates: Any) -> None:
    futures = names(gates)
    for name in "ca":
        gates.open.call_one(name).get(LIMIT_S)
    done, pending = wait(futures, first=2)
    assert {one.get() for one in done} == {"a", "c"}
    assert pending == [futures[1]]
    assert wait(futures, timeout=0.01).pending == [futures[1]]
    gates.open.call_one("b").get(LIMIT_S)
    assert len(wait(futures).done) == 3


@pytest.mark.parametrize("first", [-1, 4])
def test_an_out_of_range_number_of_futures_is_refused(gates: Any, first: int) -> None:
    with pytest.raises(ValueError, match="not between 0 and 1"):
        wait([gates.value.call_one(1)], first=first)


def test_a_value_that_is_not_a_future_is_refused(gates: Any) -> None:
    with pytest.raises(TypeError, match=r"pass what mesh.endpoint.call"):
        as_completed([3])  # type: ignore[list-item]


def test_actors_can_wait_for_calls_to_other_actors(gates: Any, all_procs: ProcMesh) -> None:
    other: Any = all_procs.slice(gpus=1).spawn("other", Gates)
    assert gates.first_of.call_one(other, [3, 1, 2]).get(LIMIT_S) == [1, 2, 3]
    assert gates.completed.call_one(other, [3, 1, 2]).get(LIMIT_S) == [1, 2, 3]


def test_an_actor_that_waits_for_itself_gets_a_deadlock_error(all_procs: ProcMesh) -> None:
    own: Any = all_procs.slice(gpus=1).spawn("own", Gates)
    with pytest.raises(DeadlockError, match="its own endpoint 'value'"):
        own.wait_for_own.call_one(own).get(LIMIT_S)


def test_a_future_can_be_passed_as_an_argument(gates: Any) -> None:
    assert gates.add.call_one(gates.value.call_one(3), b=gates.value.call_one(4)).get() == 7
    assert gates.add.choose(gates.value.choose([1]), [2]).get() == [1, 2]


def test_a_call_waits_for_the_futures_among_its_arguments(gates: Any) -> None:
    late = gates.wait.call_one("first ")
    call = gates.add.call_one(late, gates.value.call_one("second"))
    assert not call.done()
    gates.open.call_one("first ").get(LIMIT_S)
    assert call.get(LIMIT_S) == "first second"


def test_a_call_is_not_sent_if_a_future_argument_fails(gates: Any) -> None:
    with pytest.raises(LookupError, match="as asked"):
        gates.add.call_one(gates.fail.call_one(), 1).get(LIMIT_S)
    failed = gates.fail.call_one()
    wait_until(failed.done, LIMIT_S)
    with pytest.raises(LookupError, match="as asked"):
        gates.add.call_one(failed, 1).get(LIMIT_S)
