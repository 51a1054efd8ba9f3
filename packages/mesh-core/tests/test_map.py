"""`map` sends many items to the idle ranks of a mesh, in bounded memory, and survives deaths."""

from __future__ import annotations

import asyncio
import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import Actor, ProcDied, RestartPolicy, concurrent_endpoint, endpoint, this_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh

LIMIT_S = 30.0


class Worker(Actor):
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    @endpoint
    def square(self, n: int) -> int:
        return n * n

    @endpoint
    def add(self, a: int, b: int) -> int:
        return a + b

    @endpoint
    def pid(self, _: Any) -> int:
        return os.getpid()

    @endpoint
    def odd(self, n: int) -> int:
        if n % 2 == 0:
            raise ValueError(f"{n} is even")
        return n

    @endpoint
    def die(self, n: int) -> int:
        if n == 3:
            os._exit(7)
        return n

    @endpoint(idempotent=True)
    def die_once(self, n: int, mark: str) -> int:
        if n == 3 and not Path(mark).exists():
            Path(mark).touch()
            os._exit(7)
        return n

    @concurrent_endpoint
    async def wait(self, n: int) -> int:
        if n == 0:
            await self.gate.wait()
        return n

    @concurrent_endpoint
    async def open(self) -> None:
        self.gate.set()

    @endpoint
    def squares_of(self, worker: Any, count: int) -> list[int]:
        return list(worker.square.map(range(count), ordered=True))

    @endpoint
    def map_on_itself(self, worker: Any) -> list[int]:
        return list(worker.square.map(range(3)))


@pytest.fixture(scope="module")
def workers(all_procs: ProcMesh) -> Any:
    return all_procs.spawn("workers", Worker)


def test_all_items_have_results(workers: Any) -> None:
    assert sorted(workers.square.map(range(500))) == [n * n for n in range(500)]


def test_results_can_be_returned_in_the_order_of_the_items(workers: Any) -> None:
    assert list(workers.square.map(range(300), ordered=True)) == [n * n for n in range(300)]


def test_each_iterable_supplies_one_argument(workers: Any) -> None:
    assert list(workers.add.map([1, 2, 3], [10, 20], ordered=True)) == [11, 22]


def test_an_empty_iterable_has_no_results(workers: Any) -> None:
    assert list(workers.square.map([])) == []


def test_all_ranks_take_part(workers: Any) -> None:
    assert len(set(workers.pid.map(range(100)))) == 4


def test_items_are_consumed_only_up_to_the_in_flight_limit(workers: Any) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for n in range(1000):
            taken += 1
            yield n

    results = workers.square.map(items(), max_in_flight=3)
    assert taken == 12
    next(results)
    assert taken <= 24
    results.close()
    assert list(results) == []


def test_a_slow_item_blocks_no_other_map_and_its_backlog_is_bounded(all_procs: ProcMesh) -> None:
    workers: Any = all_procs.spawn("gated", Worker)
    taken: list[int] = []
    results = workers.wait.map((taken.append(n) or n for n in range(1000)), ordered=True)
    # With `ordered`, a bounded number of results waits for the first one.
    others = workers.wait.map(range(1, 100))
    assert sorted(others) == list(range(1, 100))
    assert len(taken) < 100
    workers.open.call().get(LIMIT_S)
    assert list(results) == list(range(1000))


def test_results_can_be_iterated_on_an_event_loop(workers: Any) -> None:
    async def main() -> list[int]:
        return [n async for n in workers.square.map(range(200), ordered=True)]

    assert asyncio.run(main()) == [n * n for n in range(200)]


def test_synchronous_iteration_on_an_event_loop_is_refused(workers: Any) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="use 'async for' with map"):
            list(workers.square.map(range(2)))

    asyncio.run(main())


def test_an_exception_ends_the_iteration_and_names_the_item(workers: Any) -> None:
    results = workers.odd.map([1, 3, 4, 5], ordered=True)
    assert [next(results), next(results)] == [1, 3]
    with pytest.raises(ValueError, match="4 is even") as raised:
        next(results)
    assert raised.value.__notes__ == ["in item 2 of map: odd(4)"]
    assert list(results) == []


def test_exceptions_can_be_returned_as_results(workers: Any) -> None:
    endpoint = workers.odd.options(return_exceptions=True)
    found = list(endpoint.map([1, 2, 3], ordered=True))
    assert [type(one) for one in found] == [int, type(found[1]), int]
    assert isinstance(found[1], ValueError)


def test_items_that_cannot_be_sent_are_refused_at_the_call(workers: Any) -> None:
    with pytest.raises(TypeError, match="generator"):
        workers.square.map([(n for n in range(3))])


@pytest.mark.parametrize("options", [{"max_in_flight": 0}, {"retries": -1}])
def test_out_of_range_options_are_refused(workers: Any, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        workers.square.map([1], **options)


def test_a_death_is_raised_if_the_endpoint_is_not_idempotent() -> None:
    workers: Any = this_host().spawn_procs({"n": 2}).spawn("mortal", Worker)
    with pytest.raises(ProcDied):
        list(workers.die.map(range(10)))
    workers._procs.stop().get(LIMIT_S)


@pytest.mark.parametrize("policy", [None, RestartPolicy("permanent", intensity_max=3, period_s=60)])
def test_an_idempotent_item_is_retried_after_a_death(tmp_path: Path, policy: Any) -> None:
    workers: Any = this_host().spawn_procs({"n": 2}).spawn("mortal", Worker, restart=policy)
    marks = [str(tmp_path / "mark")] * 100
    assert list(workers.die_once.map(range(100), marks, ordered=True)) == list(range(100))
    workers._procs.stop().get(LIMIT_S)


def test_a_restarted_rank_gets_items_again(tmp_path: Path) -> None:
    policy = RestartPolicy("permanent", intensity_max=3, period_s=60)
    workers: Any = this_host().spawn_procs().spawn("single", Worker, restart=policy)
    marks = [str(tmp_path / "mark")] * 10
    assert sorted(workers.die_once.map(range(10), marks)) == list(range(10))
    workers._procs.stop().get(LIMIT_S)


def test_retries_stop_when_no_rank_is_left(tmp_path: Path) -> None:
    workers: Any = this_host().spawn_procs().spawn("single", Worker)
    with pytest.raises(ProcDied):
        list(workers.die_once.map([3], [str(tmp_path / "mark")], retries=5))
    workers._procs.stop().get(LIMIT_S)


def test_an_actor_can_map_over_other_actors(workers: Any, all_procs: ProcMesh) -> None:
    caller: Any = all_procs.slice(gpus=0).spawn("caller", Worker)
    found = caller.squares_of.call_one(workers, 50).get(LIMIT_S)
    assert found == [n * n for n in range(50)]


def test_an_actor_that_maps_over_itself_gets_a_deadlock_error(all_procs: ProcMesh) -> None:
    caller: Any = all_procs.slice(gpus=0).spawn("caller", Worker)
    with pytest.raises(Exception, match="waits in 'map_on_itself' for its own endpoint 'square'"):
        caller.map_on_itself.call_one(caller).get(LIMIT_S)


def test_progress_is_shown(workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []

    class Bar:
        def __init__(self, total: int | None, desc: str) -> None:
            shown.append((total, desc))

        def update(self, steps: int) -> None:
            shown.append(steps)

        def close(self) -> None:
            shown.append("closed")

    module: Any = types.ModuleType("tqdm.auto")
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    assert sorted(workers.square.map(range(3), progress=True)) == [0, 1, 4]
    assert shown == [(3, "square"), 1, 1, 1, "closed"]


def test_progress_without_a_library_says_what_to_install(
    workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tqdm", "tqdm.auto", "rich", "rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="pip install tqdm"):
        workers.square.map(range(3), progress=True)
