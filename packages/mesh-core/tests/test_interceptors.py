"""The wrappers around endpoints, and how an actor is notified that it must stop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from mesh_core import Actor, DeadlineExceeded, configured, endpoint, this_host, this_proc
from mesh_core.spi import current_process, intercept_endpoints
from mesh_core.testing import wait_until

LIMIT_S = 30.0
seen: list[str] = []


class Worker(Actor):
    @endpoint
    def add(self, number: int) -> int:
        return number + 1

    @endpoint
    def fail(self) -> None:
        raise ValueError("it is broken")


class AsyncWorker(Actor):
    @endpoint
    async def add(self, number: int) -> int:
        return number + 1


class Sleeper(Actor):
    @endpoint
    def sleep(self) -> bool:
        wait_until(current_process.is_actor_ending, LIMIT_S)
        return True

    @endpoint
    def is_ending(self) -> bool:
        return current_process.is_actor_ending()


def noting(function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
    if is_async:

        @functools.wraps(function)
        async def serve(*args: Any) -> Any:
            seen.append(function.__name__)
            return await function(*args)

    else:

        @functools.wraps(function)
        def serve(*args: Any) -> Any:
            seen.append(function.__name__)
            return function(*args)

    return serve


def test_an_interceptor_wraps_endpoint_calls_until_it_is_removed() -> None:
    worker = this_proc().spawn("worker", Worker)
    other = this_proc().spawn("other", AsyncWorker)
    assert worker.add.call_one(1).get(LIMIT_S) == 2
    seen.clear()
    remove = intercept_endpoints(noting)
    try:
        assert worker.add.call_one(1).get(LIMIT_S) == 2
        assert other.add.call_one(2).get(LIMIT_S) == 3
        with pytest.raises(ValueError, match="it is broken"):
            worker.fail.call_one().get(LIMIT_S)
        assert seen == ["add", "add", "fail"]
        with pytest.raises(RuntimeError, match="remove it first"):
            intercept_endpoints(noting)
    finally:
        remove()
    assert worker.add.call_one(1).get(LIMIT_S) == 2
    assert len(seen) == 3
    remove()
    worker.stop().get(LIMIT_S)
    other.stop().get(LIMIT_S)


def test_a_running_endpoint_can_detect_that_its_actor_is_stopping() -> None:
    assert not current_process.is_actor_ending()
    procs = this_host().spawn_procs(name="team")
    sleeper = procs.spawn("sleeper", Sleeper)
    assert not sleeper.is_ending.call_one().get(LIMIT_S)
    sleeper.sleep.broadcast()
    with configured(stop_grace_s=0.5), pytest.raises(DeadlineExceeded):
        sleeper.stop().get(LIMIT_S)
    procs.stop().get(LIMIT_S)
