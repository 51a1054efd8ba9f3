"""`HostMesh.pool` runs functions as the executors of `concurrent.futures` do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from whole_program import run

from mesh_core import Actor, ProcDied, endpoint, this_host, this_proc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

LIMIT_S = 30.0


def square(n: int) -> int:
    return n * n


def fail(word: str) -> None:
    raise KeyError(word)


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(mark: str) -> str:
    if Path(mark).exists():
        return "alive"
    Path(mark).touch()
    return str(die())


def wait_for(path: str) -> None:
    while not Path(path).exists():
        os.sched_yield()


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with this_host().pool(3) as made:
        yield made


def test_functions_run_in_other_processes(pool: Executor) -> None:
    futures = [pool.submit(os.getpid) for _ in range(50)]
    assert os.getpid() not in {one.result(LIMIT_S) for one in futures}


@pytest.mark.parametrize("chunksize", [1, 7])
def test_results_are_in_the_order_of_the_items(pool: Executor, chunksize: int) -> None:
    found = pool.map(square, range(100), chunksize=chunksize)
    assert list(found) == [n * n for n in range(100)]
    assert list(pool.map(pow, [2, 3], [3, 2], chunksize=chunksize)) == [8, 9]


def test_an_exception_of_a_function_is_raised_by_its_future(pool: Executor) -> None:
    with pytest.raises(KeyError, match="missing"):
        pool.submit(fail, "missing").result(LIMIT_S)


def test_an_unpicklable_argument_is_refused(pool: Executor) -> None:
    with pytest.raises(TypeError, match="generator"):
        pool.submit(square, (n for n in range(3))).result(LIMIT_S)  # type: ignore[arg-type]
    assert pool.submit(square, 3).result(LIMIT_S) == 9


def test_lambdas_are_sent_with_their_closures(pool: Executor) -> None:
    factor = 3
    assert list(pool.map(lambda n: factor * n, range(3))) == [0, 3, 6]


def test_a_pool_works_with_concurrent_futures_and_asyncio(pool: Executor) -> None:
    futures = [pool.submit(square, n) for n in range(5)]
    assert {one.result() for one in concurrent.futures.as_completed(futures)} == {0, 1, 4, 9, 16}
    assert not concurrent.futures.wait(futures, LIMIT_S).not_done

    async def main() -> int:
        return await asyncio.get_running_loop().run_in_executor(pool, square, 12)

    assert asyncio.run(main()) == 144


def test_only_the_function_of_a_dead_process_fails(pool: Executor) -> None:
    futures: list[Any] = [pool.submit(die), *(pool.submit(square, n) for n in range(20))]
    with pytest.raises(ProcDied):
        futures[0].result(LIMIT_S)
    assert [one.result(LIMIT_S) for one in futures[1:]] == [n * n for n in range(20)]


def test_a_pool_outlives_the_death_of_all_its_processes(pool: Executor) -> None:
    for one in [pool.submit(die) for _ in range(9)]:
        assert isinstance(one.exception(LIMIT_S), ProcDied)
    assert pool.submit(square, 5).result(LIMIT_S) == 25


def test_a_function_can_be_retried_after_a_death(tmp_path: Path) -> None:
    with this_host().pool(2, retries=1) as pool:
        assert pool.submit(die_once, str(tmp_path / "mark")).result(LIMIT_S) == "alive"


def test_a_queued_function_can_be_cancelled(tmp_path: Path) -> None:
    with this_host().pool(1) as pool:
        first = pool.submit(wait_for, str(tmp_path / "go"))
        second, third = pool.submit(square, 1), pool.submit(square, 2)
        assert second.cancel()
        pool.shutdown(wait=False, cancel_futures=True)
        assert third.cancelled()
        (tmp_path / "go").touch()
        first.result(LIMIT_S)


def test_a_pool_that_is_shut_down_accepts_no_functions(tmp_path: Path) -> None:
    with this_host().pool(1) as pool:
        last = pool.submit(square, 2)
    assert last.result() == 4
    with pytest.raises(RuntimeError, match="the pool is shut down: create another one"):
        pool.submit(square, 1)


class Local(Actor):
    @endpoint
    async def ping(self) -> None:
        pass


class Submitter(Actor):
    @endpoint
    async def submit(self) -> int:
        pool = this_host().pool(1)
        future = pool.submit(square, 3)
        pool.shutdown(wait=False)
        await asyncio.wait_for(asyncio.to_thread(pool.shutdown), LIMIT_S)
        return future.result()


def test_the_owner_can_stop_a_pool_from_a_program_or_an_async_endpoint() -> None:
    local = this_proc().spawn("local", Local)
    local.ping.call_one().get(LIMIT_S)
    with this_host().pool(1) as pool:
        last = pool.submit(square, 2)
    assert last.result() == 4
    procs = this_host().spawn_procs()
    submitters = [procs.spawn("submitter", Submitter) for _ in range(2)]
    assert [one.submit.call_one().get(LIMIT_S) for one in submitters] == [9, 9]
    procs.stop().get(LIMIT_S)
    local.stop().get(LIMIT_S)


def test_an_initializer_that_fails_breaks_the_pool() -> None:
    pool = this_host().pool(1, initializer=fail, initargs=("at the start",))
    with pytest.raises(BrokenProcessPool) as raised:
        pool.submit(square, 1).result(LIMIT_S)
    assert isinstance(raised.value.__cause__.__cause__, KeyError)
    with pytest.raises(BrokenProcessPool):
        pool.submit(square, 1)
    pool.shutdown()


@pytest.mark.parametrize("options", [{"procs": 0}, {"procs": 1, "retries": -1}])
def test_out_of_range_options_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        this_host().pool(**options)


PROGRAM = """
import os
from mesh_core import this_host

model = None
calls = 0

def load(name):
    global model
    model = name

def use(n):
    global calls
    calls += 1
    return model, helper(n), calls

def helper(n):
    return n + 1

with this_host().pool(1, initializer=load, initargs=("weights",)) as pool:
    print(list(pool.map(use, range(3))))
"""


def test_globals_of_a_script_live_as_long_as_the_process(tmp_path: Path) -> None:
    ended = run(tmp_path, PROGRAM)
    assert ended.err == ""
    assert ended.out == "[('weights', 1, 1), ('weights', 2, 2), ('weights', 3, 3)]\n"
