"""Results of a mesh that are combined near its actors."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from workers import WorkerProcess

from mesh_core import (
    Actor,
    CallCancelled,
    DeadlineExceeded,
    ProcDied,
    attach_to_workers,
    configured,
    current_rank,
    endpoint,
    shutdown_context,
    this_host,
)
from mesh_core.testing import wait_until

LIMIT_S = 30.0
HOSTS, PER_HOST = 3, 2


class Node(Actor):
    """Has a rank, and reports where it combines."""

    def __init__(self) -> None:
        self.rank = current_rank().rank
        self.was_called = self.is_cancelled = False

    @endpoint
    def times(self, factor: int = 1) -> int:
        return self.rank * factor

    @endpoint
    def name(self) -> tuple[str, list[int]]:
        return str(self.rank), []

    @endpoint
    def array(self, length: int) -> bytes:
        return bytes([self.rank]) * length

    @endpoint
    def fail(self, *ranks: int) -> int:
        if self.rank in ranks:
            raise ValueError(f"rank {self.rank} fails")
        return self.rank

    @endpoint
    def die(self, rank: int) -> int:
        if self.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.rank

    @endpoint
    async def wait(self) -> int:
        self.was_called = True
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        return 0

    @endpoint
    async def had_wait(self) -> bool:
        return self.was_called

    @endpoint
    async def was_cancelled(self) -> bool:
        return self.is_cancelled


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Two actors on each of three hosts."""
    with ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess()) for _ in range(HOSTS)]
        hosts = attach_to_workers([worker.address for worker in workers])
        yield hosts.spawn_procs({"gpus": PER_HOST}).spawn("nodes", Node)
        shutdown_context().get()


def joined(one: tuple[str, list[int]], other: tuple[str, list[int]]) -> tuple[str, list[int]]:
    """Join two names, and record the process that does it."""
    return one[0] + other[0], [*one[1], *other[1], os.getpid()]


@pytest.mark.parametrize("fanout", [2, 16])
def test_results_are_combined_in_the_order_of_ranks(nodes: Any, fanout: int) -> None:
    with configured(cast_fanout=fanout):
        names, pids = nodes.name.reduce(joined).get(timeout=LIMIT_S)
    assert names == "012345"
    # Each host combines its own results, and the program combines the results of the hosts.
    assert len(pids) == 5
    assert len(set(pids)) >= HOSTS
    assert nodes.times.reduce(operator.add, 10).get(timeout=LIMIT_S) == 150
    assert nodes.times.reduce(max, factor=3).get(timeout=LIMIT_S) == 15


def test_a_single_host_and_a_slice_can_be_reduced(nodes: Any) -> None:
    assert nodes.slice(hosts=1).times.reduce(operator.add).get(timeout=LIMIT_S) == 5
    assert nodes.slice(gpus=1).times.reduce(operator.add).get(timeout=LIMIT_S) == 9
    assert nodes.slice(hosts=2, gpus=0).times.reduce(operator.add).get(timeout=LIMIT_S) == 4
    local = this_host().spawn_procs({"n": 4}).spawn("local", Node)
    assert local.times.reduce(operator.add, 2).get(timeout=LIMIT_S) == 12


def test_large_results_arrive(nodes: Any) -> None:
    total = nodes.array.reduce(operator.add, 300_000).get(timeout=LIMIT_S)
    assert total == b"".join(bytes([rank]) * 300_000 for rank in range(6))


async def test_a_reduction_can_be_awaited(nodes: Any) -> None:
    assert await nodes.times.reduce(operator.add) == 15


def test_all_ranks_that_fail_are_named(nodes: Any) -> None:
    with pytest.raises(ValueError, match="rank 1 fails") as raised:
        nodes.fail.reduce(operator.add, 1, 5).get(timeout=LIMIT_S)
    failures: Any = raised.value
    assert [place.rank for place, _ in failures.failures] == [1, 5]


def test_an_exception_of_combine_reaches_the_caller(nodes: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        nodes.times.reduce(lambda one, other: one // 0).get(timeout=LIMIT_S)
    # The next reduction is not affected.
    assert nodes.times.reduce(operator.add).get(timeout=LIMIT_S) == 15


def test_invalid_arguments_are_an_error_at_the_call(nodes: Any) -> None:
    with pytest.raises(TypeError, match="times"):
        nodes.slice(hosts=0).times.reduce(operator.add, 1, 2, 3)


def test_a_deadline_holds_on_every_host(nodes: Any) -> None:
    # A deadline that ends before the message has arrived leaves no call to cancel.
    for timeout in (0.2, 2.0, 20.0):
        with pytest.raises(DeadlineExceeded):
            nodes.wait.options(timeout=timeout).reduce(operator.add).get(timeout=LIMIT_S)
        if all(nodes.had_wait.call().get(timeout=LIMIT_S).values()):
            break
    cancelled = nodes.was_cancelled.call
    wait_until(lambda: all(cancelled().get(timeout=LIMIT_S).values()), LIMIT_S)


def test_cancelling_a_reduction_cancels_the_calls_on_every_host(nodes: Any) -> None:
    others = nodes.slice(hosts=slice(1, 3))
    waiting = others.wait.reduce(operator.add)
    assert waiting.cancel()
    with pytest.raises((CallCancelled, asyncio.CancelledError)):
        waiting.get(timeout=LIMIT_S)
    # The actors serve other messages again.
    assert others.times.reduce(operator.add).get(timeout=LIMIT_S) == 14


def test_the_error_names_the_rank_of_a_dead_process() -> None:
    local = this_host().spawn_procs({"n": 3}).spawn("mortal", Node)
    with pytest.raises(ProcDied) as raised:
        local.die.reduce(operator.add, 1).get(timeout=LIMIT_S)
    assert raised.value.rank == 1
