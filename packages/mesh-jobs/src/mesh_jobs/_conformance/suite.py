"""The tests that every backend must pass."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from mesh_jobs._atomic_files import read_json
from mesh_jobs._backend.registry import load_backend
from mesh_jobs._backend.report import Phase
from mesh_jobs._conformance.actor import pids_on
from mesh_jobs._conformance.backend_under_test import BackendUnderTest, JobFactory
from mesh_jobs._conformance.program import CLIENT_STATUS
from mesh_jobs._conformance.steps import (
    addresses,
    allocation_id_of,
    place_of,
    run_program,
    up,
    wait_for,
)
from mesh_jobs._errors import (
    JobError,
    JobMismatch,
    JobPending,
    NotSupported,
    SchedulerUnreachable,
)
from mesh_jobs._job.host_cache import is_reusable
from mesh_jobs._job.job import Job
from mesh_jobs._job.lookup import job_load
from mesh_jobs._spec import ClientSpec, JobSpec
from mesh_jobs._state.folder import HOST_CACHE_FILE

__all__ = ["JobConformance", "JobFactory"]

_SHORT_S = 0.5


class JobConformance(BackendUnderTest):
    """Conformance tests of a backend; derive from this class and provide a `factory` fixture.

        class TestMine(JobConformance):
            @pytest.fixture
            def factory(self, tmp_path):
                def make(meshes, name, *, ttl_s=600.0):
                    return MyJob(meshes, name=name, ttl_s=ttl_s, folder=tmp_path / name)

                return make

    The methods `workers`, `lose_host`, `block_scheduler` and `exhaust` inspect the scheduler and
    inject faults. Tests whose methods are not implemented are skipped, and pytest reports them.

    Attributes:
        up_s: The time limit in seconds for hosts to come up.
        notice_s: The time limit in seconds for the scheduler to detect a lost host.
        end_s: The time limit in seconds for the cleanup of unused resources.
        hosts_max: The maximum number of hosts of a mesh; None without a limit.
        has_workers: Whether workers serve the hosts; False if hosts are the program's own machine.
    """

    def test_a_plan_describes_the_submission_and_submits_nothing(self, make: JobFactory) -> None:
        """`plan` has no side effects."""
        job = make({"ones": 1}, "planned")
        assert job.plan().strip()
        assert not Path(job.folder).exists()

    def test_actors_run_on_every_host_of_every_mesh(self, make: JobFactory) -> None:
        """Each mesh has its size, and all hosts are distinct."""
        state = make({"ones": self.size(2), "others": 1}, "meshes").state(timeout=self.up_s)
        assert {name: len(set(pids_on(state[name]))) for name in state} == {
            "ones": self.size(2),
            "others": 1,
        }
        with pytest.raises(AttributeError, match="ones, others"):
            _ = state.more

    def test_applying_a_job_twice_submits_one_request(self, make: JobFactory) -> None:
        """The second `apply` finds the request of the first."""
        job = make({"ones": self.size(2)}, "twice")
        job.apply()
        allocation_id = allocation_id_of(job)
        job.apply()
        Job.of(job.spec, **place_of(job)).apply()
        assert allocation_id_of(job) == allocation_id
        before = up(job, self.up_s)
        job.apply()
        assert addresses(job.status()) == addresses(before)

    def test_applying_a_job_twice_starts_each_worker_once(self, make: JobFactory) -> None:
        """The scheduler runs as many workers as hosts were requested."""
        job = make({"ones": self.size(2)}, "counted")
        job.apply()
        job.apply()
        up(job, self.up_s)
        self.check_workers(allocation_id_of(job), self.size(2))

    def test_a_second_program_finds_the_hosts_of_the_first(self, make: JobFactory) -> None:
        """Another process needs only the folder."""
        job = make({"ones": self.size(2)}, "found")
        job.apply()
        first = run_program("use", job)
        second = run_program("use", job)
        assert first["addresses"] == second["addresses"]
        assert len(set(second["pids"]["ones"])) == self.size(2)

    def test_a_second_state_call_returns_the_same_mesh(self, make: JobFactory) -> None:
        """A second `state` returns the attached mesh; after `detach`, it attaches again."""
        job = make({"ones": 1}, "again")
        first = job.state(timeout=self.up_s)
        again = job_load(**place_of(job)).state(timeout=self.up_s)
        assert again.ones == first.ones
        job.detach()
        assert len(pids_on(job.state(timeout=self.up_s).ones)) == 1

    def test_applying_a_different_spec_changes_nothing_and_lists_the_differences(
        self, make: JobFactory
    ) -> None:
        """Running hosts are released only on request."""
        if self.size(2) < 2:
            pytest.skip("its meshes have one host: no other size can be requested")
        job = make({"ones": 2}, "differs")
        before = addresses(up(job.apply(), self.up_s))
        other = Job.of(job.spec.resized("ones", 1), **place_of(job))
        with pytest.raises(JobMismatch) as raised:
            other.apply()
        assert raised.value.differences == (("meshes.ones.hosts", 2, 1),)
        assert addresses(job.status()) == before
        other.apply(replace=True)
        assert len(addresses(up(other, self.up_s))) == 1

    def test_kill_leaves_nothing_behind_and_is_idempotent(self, make: JobFactory) -> None:
        """No worker and no file remains, and the job can be applied again."""
        job = make({"ones": self.size(2)}, "killed")
        job.apply()
        up(job, self.up_s)
        allocation_id = allocation_id_of(job)
        job.kill()
        job.kill()
        assert not Path(job.folder).exists()
        with pytest.raises(JobError, match="not applied"):
            job.status()
        assert self.workers(allocation_id) == 0

    def test_a_job_can_be_killed_before_it_is_up(self, make: JobFactory) -> None:
        """A job can be released before it runs."""
        job = make({"ones": self.size(2)}, "early")
        job.apply()
        allocation_id = allocation_id_of(job)
        job.kill()
        assert not Path(job.folder).exists()
        assert self.workers(allocation_id) == 0

    def test_a_client_with_wrong_credentials_is_refused(self, make: JobFactory) -> None:
        """The address of a worker is not sufficient to use it, and its owner can still use it."""
        self.need_workers()
        job = make({"ones": 1}, "secret")
        up(job.apply(), self.up_s)
        assert "pids" not in run_program("use_wrong_credentials", job)
        assert len(run_program("use", job)["pids"]["ones"]) == 1

    def test_only_the_owner_can_read_the_keys(self, make: JobFactory) -> None:
        """No other user can read the keys that authenticate connections."""
        job = make({"ones": 1}, "private")
        job.apply()
        keys = Path(job.folder, "keys")
        open_to_others = [path for path in [keys, *keys.rglob("*")] if path.stat().st_mode & 0o77]
        assert open_to_others == []

    def test_two_concurrent_jobs_are_independent(self, make: JobFactory) -> None:
        """The end of one job does not affect the other."""
        one, other = make({"ones": 1}, "left"), make({"ones": 1}, "right")
        one.apply()
        other.apply()
        ones, others = one.state(timeout=self.up_s).ones, other.state(timeout=self.up_s).ones
        if self.has_workers:
            assert addresses(one.status()) != addresses(other.status())
        assert set(pids_on(ones)).isdisjoint(pids_on(others))
        one.kill()
        assert len(pids_on(others)) == 1

    def test_a_lost_host_is_reported_and_the_other_hosts_keep_running(
        self, make: JobFactory
    ) -> None:
        """The loss of a host does not end the job."""
        job = make({"ones": 2, "others": 1}, "lossy")
        state = job.state(timeout=self.up_s)
        others = state.others
        # Attach completely first: a host that dies while it joins is retried until the attach
        # timeout.
        state.ones.initialized.get(timeout=self.up_s)
        before = {(host.mesh, host.rank): host for host in job.status().hosts}
        self.lose_host(job, "ones", 1)

        def is_noticed() -> bool:
            now = job.status().of("ones")[1]
            return not now.is_up or now.epoch > before["ones", 1].epoch

        wait_for(is_noticed, self.notice_s)
        status = job.status()
        assert status.state is not Phase.ENDED
        assert status.of("others")[0] == before["others", 0]
        assert len(pids_on(others)) == 1

    def test_a_pending_job_reports_the_reason_and_can_be_killed(self, factory: JobFactory) -> None:
        """Waiting programs receive the reason why hosts are pending."""
        job = self.exhaust(factory)
        try:
            job.apply()
            with pytest.raises(JobPending) as raised:
                job.state(timeout=_SHORT_S)
            assert raised.value.reason
            assert raised.value.reason in str(raised.value)
            allocation_id = allocation_id_of(job)
        finally:
            job.kill()
        assert not Path(job.folder).exists()
        assert self.workers(allocation_id) == 0

    def test_a_scheduler_outage_neither_ends_nor_duplicates_workers(self, make: JobFactory) -> None:
        """An unreachable scheduler ends nothing, and nothing is requested twice."""
        job = make({"ones": self.size(2)}, "silent")
        before = up(job.apply(), self.up_s)
        allocation_id = allocation_id_of(job)
        with self.block_scheduler():
            asks = (job.status, lambda: job.state(timeout=_SHORT_S), job.apply)
            # The calls run concurrently because the commands of some schedulers have long timeouts.
            with ThreadPoolExecutor(len(asks)) as pool:
                futures = [pool.submit(cast("Callable[[], object]", ask)) for ask in asks]
            for one in futures:
                with pytest.raises(SchedulerUnreachable):
                    one.result()
            with pytest.raises(SchedulerUnreachable):
                job.kill()
        assert allocation_id_of(job) == allocation_id
        # The failed kill is not repeated until a program requests it.
        again = Job.of(job.spec, **place_of(job))
        assert self.workers(allocation_id) == len(before.hosts)
        again.kill()
        assert self.workers(allocation_id) == 0

    def test_hosts_are_reused_during_and_after_a_scheduler_outage(self, make: JobFactory) -> None:
        """A program that finds the workers of the previous program does not need the scheduler."""
        silence = self.block_scheduler()
        job = make({"ones": 1}, "back")
        before = up(job.apply(), self.up_s)
        assert len(pids_on(job.state(timeout=self.up_s).ones)) == 1
        allocation = read_json(Path(job.folder, "job.json"))["allocation"]
        way = load_backend(job.spec.backend, job.spec.options).gateway(allocation)
        if is_reusable(way):
            wait_for(Path(job.folder, HOST_CACHE_FILE).exists, self.up_s)
        job.detach()
        with silence:
            with pytest.raises(SchedulerUnreachable):
                job.apply()
            if is_reusable(way):
                assert len(run_program("find-again", job)["ones"]) == 1
        job.apply()
        assert addresses(up(job, self.up_s)) == addresses(before)

    def test_a_failed_submission_can_be_retried(self, make: JobFactory) -> None:
        """A job whose submission failed is submitted later, and only once."""
        job = make({"ones": self.size(2)}, "unheard")
        with self.block_scheduler(), pytest.raises(JobError):
            job.apply()
        job.apply()
        up(job, self.up_s)
        self.check_workers(allocation_id_of(job), self.size(2))

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_the_next_program_completes_an_interrupted_apply(
        self, make: JobFactory, when: str
    ) -> None:
        """The program is killed before or after the submission, and stores no allocation."""
        job = make({"ones": self.size(2)}, f"killed-{when}")
        run_program(f"die-{when}-allocate", job, dies=True)
        allocation_id = allocation_id_of(job)
        job.apply()
        assert allocation_id_of(job) == allocation_id
        assert len(set(pids_on(job.state(timeout=self.up_s).ones))) == self.size(2)
        self.check_workers(allocation_id, self.size(2))

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_job_of_an_interrupted_apply_can_be_killed(self, make: JobFactory, when: str) -> None:
        """An allocation can be released if only its id is stored."""
        job = make({"ones": self.size(2)}, f"orphan-{when}")
        run_program(f"die-{when}-allocate", job, dies=True)
        allocation_id = allocation_id_of(job)
        job.kill()
        assert not Path(job.folder).exists()
        assert self.workers(allocation_id) == 0

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_the_next_apply_completes_an_interrupted_kill(
        self, make: JobFactory, when: str
    ) -> None:
        """The next `apply` completes the release, and requests new hosts."""
        job = make({"ones": 1}, f"halfway-{when}")
        up(job.apply(), self.up_s)
        allocation_id = allocation_id_of(job)
        run_program(f"die-{when}-release", job, dies=True)
        with pytest.raises(JobError, match="released"):
            job_load(**place_of(job)).state(timeout=self.up_s)
        job.apply()
        assert allocation_id_of(job) != allocation_id
        up(job, self.up_s)
        assert self.workers(allocation_id) == 0

    def test_the_next_program_uses_the_hosts_of_a_killed_program(self, make: JobFactory) -> None:
        """A program that is killed while it runs leaves its hosts to others."""
        job = make({"ones": self.size(2)}, "survived")
        run_program("run-and-die", job, dies=True)
        assert len(set(run_program("use", job)["pids"]["ones"])) == self.size(2)

    @pytest.mark.parametrize("when", ["applied", "run", "killed"])
    def test_an_unused_job_ends(self, make: JobFactory, when: str) -> None:
        """After a kill, the remaining resources are released without any further program."""
        self.need_workers()
        # The program needs enough time to attach, even on a busy machine.
        ttl_s = 6.0 if when == "run" else 2.0
        job = make({"ones": self.size(2)}, f"forgotten-{when}", ttl_s=ttl_s)
        if when == "killed":
            job.apply()
        dies = {
            "applied": "die-after-allocate",
            "run": "run-and-die",
            "killed": "die-before-release",
        }
        run_program(dies[when], job, dies=True)
        allocation_id = allocation_id_of(job)
        wait_for(lambda: self.workers(allocation_id) == 0, self.end_s)
        if when == "run":
            wait_for(lambda: job.status().state is Phase.ENDED, self.end_s)

    def test_a_job_ends_with_the_exit_status_of_its_client_script(self, make: JobFactory) -> None:
        """The test also kills the applying program before it stores the allocation."""
        job = make({"ones": self.size(2)}, "batch")
        spec = self.batch(job, "inside")
        run_program("die-after-allocate", Job.of(spec, **place_of(job)), dies=True)
        job = job_load(**place_of(job))
        ended = Job.of(spec, **place_of(job)).apply().wait(timeout=2 * self.up_s)
        assert ended.exit_code == CLIENT_STATUS, f"{ended}\n{job.client_logs()}"
        assert str(CLIENT_STATUS) in ended.reason or "FAILED" in ended.reason
        said = [line for line in job.client_logs().splitlines() if line.startswith("{")]
        assert len(set(json.loads(said[0])["pids"]["ones"])) == self.size(2)
        assert self.workers(ended.allocation_id) == 0

    def test_killing_a_job_terminates_its_client_script(self, make: JobFactory) -> None:
        """Killing the job terminates the client script."""
        job = make({"ones": 1}, "halted")
        batch = Job.of(self.batch(job, "wait-inside"), **place_of(job)).apply()
        wait_for(lambda: "waits" in batch.client_logs(), self.up_s)
        allocation_id = allocation_id_of(job)
        with pytest.raises(JobMismatch, match="client"):
            job.status()
        batch.kill()
        assert not Path(job.folder).exists()
        assert self.workers(allocation_id) == 0

    def batch(self, job: Job, action: str) -> JobSpec:
        """Return the spec of a job that runs a conformance program as its client script."""
        place, spec = place_of(job), json.dumps(job.spec.to_json())
        words = ["-m", "mesh_jobs._conformance.program", action, str(place["folder"])]
        client = ClientSpec((*words, str(place["context"]), spec), os.getcwd())
        if not type(load_backend(job.spec.backend, job.spec.options)).runs_clients:
            with pytest.raises(NotSupported, match="runs no client scripts"):
                job.apply("train.py")
            pytest.skip("this backend cannot run client scripts")
        return replace(job.spec, client=client)

    def test_a_mesh_grows_and_shrinks(self, make: JobFactory) -> None:
        """A resize does not affect the remaining hosts."""
        job = make({"ones": 1}, "elastic")
        before = addresses(up(job.apply(), self.up_s))
        try:
            job.resize(mesh="ones", hosts=2)
        except NotSupported as error:
            pytest.skip(f"this backend cannot resize: {error}")
        assert addresses(up(job, self.up_s))[:1] == before
        assert len(run_program("use", job)["pids"]["ones"]) == 2
        job.resize(mesh="ones", hosts=1)
        assert addresses(up(job, self.up_s)) == before
        assert self.workers(allocation_id_of(job)) == 1

    def test_the_output_of_workers_is_kept(self, make: JobFactory) -> None:
        """The output of a worker can be read while it runs."""
        job = make({"ones": 1}, "logged")
        up(job.apply(), self.up_s)
        try:
            # A scheduler may store the output some time after the worker has written it.
            wait_for(lambda: "mesh worker serves" in job.logs("ones", 0), self.up_s)
        except NotSupported as error:
            pytest.skip(f"this backend keeps no output: {error}")

    def test_events_are_reported_in_order(self, make: JobFactory) -> None:
        """Events have timestamps, and one of them records that the job was applied."""
        job = make({"ones": 1}, "told")
        up(job.apply(), self.up_s)
        events = job.events()
        assert "applied" in [event.kind for event in events]
        assert [event.at for event in events] == sorted(event.at for event in events)
