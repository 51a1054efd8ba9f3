"""Reused threads do not mix up their work items."""

from __future__ import annotations

import math
import threading
import time
from functools import partial

import pytest
from recorded_actors import LIMIT_S

from mesh_core.testing import wait_until
from mesh_telemetry._query.deadline import DeadlineExceeded, within
from mesh_telemetry._query.work_threads import WorkThread


def soon() -> float:
    return time.monotonic() + LIMIT_S


def busy(until: float) -> None:
    while time.monotonic() < until:
        pass


def test_a_thread_is_reused_for_the_next_work() -> None:
    first = within(threading.get_ident, soon())
    assert within(threading.get_ident, soon()) == first
    with pytest.raises(ZeroDivisionError):
        within(lambda: 1 / 0, soon())
    assert within(threading.get_ident, soon()) == first


def test_concurrent_work_runs_in_a_separate_thread() -> None:
    inner = within(
        lambda: (threading.get_ident(), within(threading.get_ident, soon())),
        soon(),
    )
    assert inner[0] != inner[1]


def test_the_thread_of_late_work_exits_with_it() -> None:
    threads: list[threading.Thread] = []

    def endless() -> None:
        threads.append(threading.current_thread())
        busy(math.inf)

    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            within(endless, time.monotonic() + 0.1)
        assert within(lambda: 1, soon()) == 1
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_late_work_ends_although_its_exception_is_lost() -> None:
    """Python reports an exception in a finalizer as unraisable and continues."""
    threads: list[threading.Thread] = []

    class BusyAtEnd:
        def __del__(self) -> None:
            busy(math.inf)

    def endless() -> None:
        threads.append(threading.current_thread())
        BusyAtEnd()
        busy(math.inf)

    with pytest.raises(DeadlineExceeded):
        within(endless, time.monotonic() + 0.1)
    threads[0].join(LIMIT_S)
    assert not threads[0].is_alive()


def test_stopping_late_work_does_not_interrupt_the_next_work() -> None:
    """Work ends at about its deadline: in either case the next work must not be interrupted."""
    late = 0
    for number in range(150):
        until = time.monotonic() + 0.001
        try:
            within(partial(busy, until + 0.01 * (number % 3 - 1)), until)
        except DeadlineExceeded:
            late += 1
        assert within(partial(int, number), soon()) == number
    assert late > 0


def test_work_that_is_late_before_its_thread_has_started_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[threading.Thread] = []
    ran: list[int] = []
    run = WorkThread.run

    def run_slowly(thread: WorkThread) -> None:
        started.append(thread)
        busy(time.monotonic() + 0.2)
        run(thread)

    monkeypatch.setattr(WorkThread, "run", run_slowly)
    # Late work ends its thread, so the threads of earlier tests are soon used up.
    while not started:
        with pytest.raises(DeadlineExceeded):
            within(partial(busy, math.inf), time.monotonic() + 0.05)
    with pytest.raises(DeadlineExceeded):
        within(partial(ran.append, 1), time.monotonic() + 0.05)
    assert len(started) == 2
    for thread in started:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    wait_until(lambda: not any(thread.name.endswith("-stop") for thread in threading.enumerate()))
    assert not ran
