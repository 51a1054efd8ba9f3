"""A watch of leaving hosts reports each of them once, from whichever source knows first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from mesh_core.testing import wait_until
from mesh_jobs import HostDraining, Phase
from mesh_jobs._backend.follower import Follower
from mesh_jobs._backend.report import Report
from mesh_jobs._errors import SchedulerUnreachable
from mesh_jobs._job.eviction_watch import LeavingWatch


def notice(reason: str, rank: int = 0, epoch: int = 1) -> HostDraining:
    return HostDraining("workers", rank, reason, None, epoch)


class Scheduler(Follower):
    """A scheduler with a watch, and workers, which tests let report notices."""

    def __init__(self) -> None:
        self.is_up = True
        self.queried: list[HostDraining] = []
        self.watched: list[HostDraining] = []
        self.here: list[HostDraining] = []
        self.changed = threading.Event()
        self.queries = 0

    def report(self) -> Report:
        return Report(Phase.RUNNING, "", ())

    def confirmed(self) -> Report:
        return self.report()

    def wait(self, seconds: float) -> bool:
        is_changed = self.changed.wait(seconds)
        self.changed.clear()
        return is_changed

    def leaving(self) -> Sequence[HostDraining]:
        found, self.watched = self.watched, []
        return found

    def look(self) -> list[HostDraining]:
        self.queries += 1
        if not self.is_up:
            raise SchedulerUnreachable("it does not respond: try again later")
        return self.queried

    @contextmanager
    def follow(self) -> Iterator[Follower]:
        yield self

    def query_again(self) -> None:
        """Return when the watch has completed another query."""
        before = self.queries
        self.changed.set()
        wait_until(lambda: self.queries > before + 1 or self.changed.set())


@contextmanager
def watching(scheduler: Scheduler) -> Iterator[list[str]]:
    """Yield the reasons that a watch reports."""
    found: list[str] = []

    def notify(host: HostDraining) -> None:
        found.append(host.reason)

    with LeavingWatch(scheduler.look, notify, 0.05, scheduler.follow, lambda: scheduler.here):
        yield found


@pytest.mark.parametrize(
    ("first", "second", "reported"),
    [
        ("drain", "preempt", ["drain"]),
        ("drain", "end", ["drain"]),
        ("end", "drain", ["end"]),
        ("timeout", "end", ["timeout"]),
        ("timeout", "preempt", ["timeout", "preempt"]),
        ("drain", "timeout", ["drain", "timeout"]),
    ],
)
def test_an_eviction_and_a_time_limit_are_each_reported_once(
    first: str, second: str, reported: list[str]
) -> None:
    scheduler = Scheduler()
    with watching(scheduler) as found:
        scheduler.queried = [notice(first)]
        wait_until(lambda: found)
        scheduler.queried = [notice(second)]
        scheduler.query_again()
    assert found == reported


def test_the_next_worker_of_a_host_is_reported_as_well() -> None:
    scheduler = Scheduler()
    with watching(scheduler) as found:
        scheduler.queried = [notice("drain")]
        wait_until(lambda: found)
        scheduler.queried = [notice("preempt", epoch=2)]
        wait_until(lambda: len(found) == 2)
    assert found == ["drain", "preempt"]


def watched(scheduler: Scheduler) -> None:
    scheduler.watched = [notice("drain")]


def reported_by_its_worker(scheduler: Scheduler) -> None:
    scheduler.here = [notice("end")]


@pytest.mark.parametrize(
    ("leave", "is_up", "reason"),
    [
        (watched, True, "drain"),
        (watched, False, "drain"),
        (reported_by_its_worker, False, "end"),
    ],
)
def test_a_notice_that_no_query_shows_is_reported(
    leave: Callable[[Scheduler], None], is_up: bool, reason: str
) -> None:
    scheduler = Scheduler()
    with watching(scheduler) as found:
        scheduler.is_up = is_up
        leave(scheduler)
        scheduler.changed.set()
        wait_until(lambda: found)
    assert found == [reason]


def test_the_scheduler_provides_the_reason_for_the_shutdown_of_a_worker() -> None:
    scheduler = Scheduler()
    scheduler.queried = []
    with watching(scheduler) as found:
        scheduler.queried = [notice("preempt")]
        scheduler.here = [notice("end")]
        wait_until(lambda: found)
        scheduler.query_again()
    assert found == ["preempt"]
