"""The tests that every backend must pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

import pytest

from mesh_jobs._errors import (
    JobError,
    JobMismatch,
    JobPending,
    NotSupported,
    SchedulerUnreachable,
)
from mesh_jobs._files import read_json
from mesh_jobs._job import Job, job_load
from mesh_jobs._kit_actor import pids_on
from mesh_jobs._report import Phase
from mesh_jobs._status import JobStatus

__all__ = ["JobConformance", "JobFactory"]

_SHORT_S = 0.5
_PAUSE_S = 0.1


class JobFactory(Protocol):
    """Makes a job of the backend under test; it is applied by the test."""

    def __call__(self, meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
        """Makes a job with these meshes, whose state is in a folder of its own.

        Args:
            meshes: How many hosts each mesh has.
            name: What the job is called; no two jobs of a test have the same.
            ttl_s: What the job is to have as `ttl_s`.
        """
        ...


class JobConformance:
    """Tests of a backend, as users will need it; derive a class from it with a `factory` fixture.

        class TestMine(JobConformance):
            @pytest.fixture
            def factory(self, tmp_path):
                def make(meshes, name, *, ttl_s=600.0):
                    return MyJob(meshes, name=name, ttl_s=ttl_s, folder=tmp_path / name)

                return make

    `workers`, `lose_host`, `block_scheduler` and `exhaust` say how this scheduler is looked at and
    how it breaks; what is left out is skipped, and the report says so.

    Attributes:
        up_s: How long hosts may take to come up.
        notice_s: How long the scheduler may take to notice that a host is lost.
        end_s: How long it may take until nothing is left of what nobody uses.
    """

    up_s: float = 60.0
    notice_s: float = 60.0
    end_s: float = 60.0

    def workers(self, order_id: str) -> int:
        """Says how many workers of an order run or wait, from the scheduler's point of view."""
        pytest.skip("the backend's tests do not define workers(order_id)")

    def lose_host(self, job: Job, mesh: str, rank: int) -> None:
        """Takes a host away as a power cut does."""
        pytest.skip("the backend's tests do not define lose_host(job, mesh, rank)")

    def block_scheduler(self) -> AbstractContextManager[None]:
        """Has the scheduler not answer meanwhile."""
        pytest.skip("the backend's tests do not define block_scheduler()")

    def exhaust(self, factory: JobFactory) -> Job:
        """Makes a job that the scheduler cannot start now."""
        pytest.skip("the backend's tests do not define exhaust(factory)")

    @pytest.fixture
    def make(self, factory: JobFactory) -> Iterator[JobFactory]:
        """As `factory`, and gives back what the test has not."""
        made: list[Job] = []

        def make(meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
            job = factory(meshes, name, ttl_s=ttl_s)
            made.append(job)
            return job

        yield make
        for job in made:
            job.kill()

    def test_a_plan_says_what_would_be_submitted_and_submits_nothing(
        self, make: JobFactory
    ) -> None:
        """`plan` has no effect."""
        job = make({"ones": 1}, "planned")
        assert job.plan().strip()
        assert not Path(job.folder).exists()

    def test_actors_run_on_every_host_of_every_mesh(self, make: JobFactory) -> None:
        """Each mesh has its size, and each host is one of its own."""
        state = make({"ones": 2, "others": 1}, "meshes").state(timeout=self.up_s)
        assert {name: len(set(pids_on(state[name]))) for name in state} == {"ones": 2, "others": 1}
        with pytest.raises(AttributeError, match="ones, others"):
            _ = state.more

    def test_applying_twice_asks_once(self, make: JobFactory) -> None:
        """The second `apply` finds what the first has asked for."""
        job = make({"ones": 2}, "twice")
        job.apply()
        order_id = _order_id(job)
        job.apply()
        Job.of(job.spec, **_place(job)).apply()
        assert _order_id(job) == order_id
        before = _up(job, self.up_s)
        job.apply()
        assert _addresses(job.status()) == _addresses(before)

    def test_nothing_runs_twice_after_applying_twice(self, make: JobFactory) -> None:
        """The scheduler has as many workers as hosts were asked for."""
        job = make({"ones": 2}, "counted")
        job.apply()
        job.apply()
        _up(job, self.up_s)
        assert self.workers(_order_id(job)) == 2

    def test_a_second_program_finds_the_hosts_of_the_first(self, make: JobFactory) -> None:
        """Another process needs the folder alone."""
        job = make({"ones": 2}, "found")
        job.apply()
        first = _run("use", job)
        second = _run("use", job)
        assert first["addresses"] == second["addresses"]
        assert len(set(second["pids"]["ones"])) == 2

    def test_a_program_gets_the_same_mesh_again(self, make: JobFactory) -> None:
        """Asking twice attaches once, and after `detach` anew."""
        job = make({"ones": 1}, "again")
        first = job.state(timeout=self.up_s)
        again = job_load(**_place(job)).state(timeout=self.up_s)
        assert again.ones == first.ones
        job.detach()
        assert len(pids_on(job.state(timeout=self.up_s).ones)) == 1

    def test_another_spec_changes_nothing_and_says_what_differs(self, make: JobFactory) -> None:
        """What runs is given back when that is asked for, and not before."""
        job = make({"ones": 2}, "differs")
        before = _addresses(_up(job.apply(), self.up_s))
        other = Job.of(job.spec.resized("ones", 1), **_place(job))
        with pytest.raises(JobMismatch) as raised:
            other.apply()
        assert raised.value.differences == (("meshes.ones.hosts", 2, 1),)
        assert _addresses(job.status()) == before
        other.apply(replace=True)
        assert len(_addresses(_up(other, self.up_s))) == 1

    def test_killing_leaves_nothing_and_can_be_done_twice(self, make: JobFactory) -> None:
        """No worker, no file, and a job that can be applied anew."""
        job = make({"ones": 2}, "killed")
        job.apply()
        _up(job, self.up_s)
        order_id = _order_id(job)
        job.kill()
        job.kill()
        assert not Path(job.folder).exists()
        with pytest.raises(JobError, match="not applied"):
            job.status()
        assert self.workers(order_id) == 0

    def test_what_is_not_up_yet_can_be_killed(self, make: JobFactory) -> None:
        """A job is given back also before it runs."""
        job = make({"ones": 2}, "early")
        job.apply()
        order_id = _order_id(job)
        job.kill()
        assert not Path(job.folder).exists()
        assert self.workers(order_id) == 0

    def test_who_lacks_the_secret_is_refused(self, make: JobFactory) -> None:
        """Whoever reaches a worker does not get at it, and its owner still does."""
        job = make({"ones": 1}, "secret")
        _up(job.apply(), self.up_s)
        assert "pids" not in _run("intrude", job)
        assert len(_run("use", job)["pids"]["ones"]) == 1

    def test_the_keys_are_for_their_owner_alone(self, make: JobFactory) -> None:
        """Nobody else can read what the job's links are proved with."""
        job = make({"ones": 1}, "private")
        job.apply()
        keys = Path(job.folder, "keys")
        open_to_others = [path for path in [keys, *keys.rglob("*")] if path.stat().st_mode & 0o77]
        assert open_to_others == []

    def test_two_jobs_at_once_do_not_meet(self, make: JobFactory) -> None:
        """The end of one is nothing to the other."""
        one, other = make({"ones": 1}, "left"), make({"ones": 1}, "right")
        one.apply()
        other.apply()
        ones, others = one.state(timeout=self.up_s).ones, other.state(timeout=self.up_s).ones
        assert _addresses(one.status()) != _addresses(other.status())
        assert set(pids_on(ones)).isdisjoint(pids_on(others))
        one.kill()
        assert len(pids_on(others)) == 1

    def test_a_lost_host_is_reported_and_the_others_go_on(self, make: JobFactory) -> None:
        """The job is not over because one host is."""
        job = make({"ones": 2, "others": 1}, "lossy")
        others = job.state(timeout=self.up_s).others
        before = {(host.mesh, host.rank): host for host in job.status().hosts}
        self.lose_host(job, "ones", 1)

        def is_noticed() -> bool:
            now = job.status().of("ones")[1]
            return not now.is_up or now.epoch > before["ones", 1].epoch

        _wait(is_noticed, self.notice_s)
        status = job.status()
        assert status.state is not Phase.ENDED
        assert status.of("others")[0] == before["others", 0]
        assert len(pids_on(others)) == 1

    def test_what_stays_pending_says_why_and_can_be_killed(self, factory: JobFactory) -> None:
        """Nobody waits for ever without knowing for what."""
        job = self.exhaust(factory)
        try:
            job.apply()
            with pytest.raises(JobPending) as raised:
                job.state(timeout=_SHORT_S)
            assert raised.value.reason
            assert raised.value.reason in str(raised.value)
            order_id = _order_id(job)
        finally:
            job.kill()
        assert not Path(job.folder).exists()
        assert self.workers(order_id) == 0

    def test_a_scheduler_that_does_not_answer_costs_nothing(self, make: JobFactory) -> None:
        """Silence is no end: nothing is killed, nothing is asked for twice."""
        job = make({"ones": 2}, "silent")
        before = _up(job.apply(), self.up_s)
        order_id = _order_id(job)
        with self.block_scheduler():
            for ask in (job.status, lambda: job.state(timeout=_SHORT_S), job.apply, job.kill):
                with pytest.raises(SchedulerUnreachable):
                    cast("Callable[[], object]", ask)()
        assert _order_id(job) == order_id
        # The kill that nobody heard is done now, and not before somebody asks for it.
        again = Job.of(job.spec, **_place(job))
        assert self.workers(order_id) == len(before.hosts)
        again.kill()
        assert self.workers(order_id) == 0

    def test_hosts_that_were_silent_are_used_again(self, make: JobFactory) -> None:
        """After the silence the same hosts are there."""
        job = make({"ones": 1}, "back")
        before = _up(job.apply(), self.up_s)
        with self.block_scheduler(), pytest.raises(SchedulerUnreachable):
            job.apply()
        job.apply()
        assert _addresses(_up(job, self.up_s)) == _addresses(before)

    def test_what_nobody_heard_can_be_asked_again(self, make: JobFactory) -> None:
        """A job that could not be submitted is submitted later, and once."""
        job = make({"ones": 2}, "unheard")
        with self.block_scheduler(), pytest.raises(JobError):
            job.apply()
        job.apply()
        _up(job, self.up_s)
        assert self.workers(_order_id(job)) == 2

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_program_killed_while_it_applied_is_carried_on(
        self, make: JobFactory, when: str
    ) -> None:
        """Between the id of the order and the ticket, on both sides of the submission."""
        job = make({"ones": 2}, f"killed-{when}")
        _run(f"die-{when}-allocate", job, dies=True)
        order_id = _order_id(job)
        job.apply()
        assert _order_id(job) == order_id
        assert len(set(pids_on(job.state(timeout=self.up_s).ones))) == 2
        assert self.workers(order_id) == 2

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_what_a_killed_program_had_begun_can_be_killed(
        self, make: JobFactory, when: str
    ) -> None:
        """Nobody needs the ticket to give it back."""
        job = make({"ones": 2}, f"orphan-{when}")
        _run(f"die-{when}-allocate", job, dies=True)
        order_id = _order_id(job)
        job.kill()
        assert not Path(job.folder).exists()
        assert self.workers(order_id) == 0

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_kill_that_was_killed_is_finished(self, make: JobFactory, when: str) -> None:
        """Whoever applies next finishes it, and gets hosts of its own."""
        job = make({"ones": 1}, f"halfway-{when}")
        _up(job.apply(), self.up_s)
        order_id = _order_id(job)
        _run(f"die-{when}-release", job, dies=True)
        with pytest.raises(JobError, match="given back"):
            job_load(**_place(job)).state(timeout=self.up_s)
        job.apply()
        assert _order_id(job) != order_id
        _up(job, self.up_s)
        assert self.workers(order_id) == 0

    def test_hosts_of_a_killed_program_serve_the_next(self, make: JobFactory) -> None:
        """A program that is killed while it runs leaves its hosts to others."""
        job = make({"ones": 2}, "survived")
        _run("run-and-die", job, dies=True)
        assert len(set(_run("use", job)["pids"]["ones"])) == 2

    def test_what_nobody_uses_ends_by_itself(self, make: JobFactory) -> None:
        """A program that was killed for good leaves nothing that costs."""
        job = make({"ones": 2}, "forgotten", ttl_s=3.0)
        _run("run-and-die", job, dies=True)
        order_id = _order_id(job)
        _wait(lambda: job.status().state is Phase.ENDED, self.end_s)
        assert self.workers(order_id) == 0

    def test_a_mesh_grows_and_shrinks(self, make: JobFactory) -> None:
        """The hosts that stay are not touched."""
        job = make({"ones": 1}, "elastic")
        before = _addresses(_up(job.apply(), self.up_s))
        try:
            job.resize(mesh="ones", hosts=2)
        except NotSupported as error:
            pytest.skip(f"this backend cannot resize: {error}")
        assert _addresses(_up(job, self.up_s))[:1] == before
        assert len(_run("use", job)["pids"]["ones"]) == 2
        job.resize(mesh="ones", hosts=1)
        assert _addresses(_up(job, self.up_s)) == before
        assert self.workers(_order_id(job)) == 1

    def test_the_output_of_workers_is_kept(self, make: JobFactory) -> None:
        """What a worker said can be read while it runs."""
        job = make({"ones": 1}, "logged")
        _up(job.apply(), self.up_s)
        try:
            assert "mesh worker serves" in job.logs("ones", 0)
        except NotSupported as error:
            pytest.skip(f"this backend keeps no output: {error}")

    def test_what_happened_is_told_in_order(self, make: JobFactory) -> None:
        """Events have times, and the first is that somebody applied the job."""
        job = make({"ones": 1}, "told")
        _up(job.apply(), self.up_s)
        events = job.events()
        assert "applied" in [event.kind for event in events]
        assert [event.at for event in events] == sorted(event.at for event in events)


def _place(job: Job) -> dict[str, Any]:
    path = Path(job.folder)
    return {"context": path.name, "folder": path.parent.parent}


def _order_id(job: Job) -> str:
    stored = read_json(Path(job.folder, "job.json"))
    assert stored["schema"] == 1
    return str(stored["order_id"])


def _addresses(status: JobStatus) -> list[str | None]:
    return [host.address for host in status.hosts]


def _up(job: Job, timeout_s: float) -> JobStatus:
    """Waits until all hosts are up, without attaching to them."""
    _wait(lambda: job.status().is_up, timeout_s)
    return job.status()


def _wait(condition: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"it did not come to hold in {limit_s:g} s"
        # A scheduler is asked each time.
        time.sleep(_PAUSE_S)


def _run(action: str, job: Job, *, dies: bool = False) -> Any:
    """Runs a program of the kit to its end, and gives what it said."""
    place = _place(job)
    spec = json.dumps(job.spec.to_json())
    words = [action, os.fspath(place["folder"]), str(place["context"]), spec]
    command = [sys.executable, "-m", "mesh_jobs._kit_program", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode == -9) is dies, f"{done.returncode}: {done.stdout}{done.stderr}"
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(said[-1]) if said else None
