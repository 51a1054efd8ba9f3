"""Jobs whose hosts are processes of this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh_core.testing import wait_until
from mesh_jobs import (
    HostDraining,
    Job,
    JobEnded,
    JobState,
    ProcessJob,
    SchedulerUnreachable,
    job_load,
)
from mesh_jobs._local.process_backend import ProcessBackend
from mesh_jobs.testing import JobConformance, JobFactory, worker_pids


class TestProcessJob(JobConformance):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> JobFactory:
        def make(meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
            return ProcessJob(meshes, name=name, ttl_s=ttl_s, folder=tmp_path / name)

        return make

    def workers(self, allocation_id: str) -> int:
        return len(worker_pids(allocation_id))

    def lose_host(self, job: Job, mesh: str, rank: int) -> None:
        allocation_id = job.status().allocation_id
        os.kill(worker_pids(allocation_id)[mesh, rank], signal.SIGKILL)


UP_S = 60.0


@pytest.fixture
def known(tmp_path: Path) -> Iterator[Job]:
    """A job whose workers a program has used and detached from."""
    job = ProcessJob({"ones": 2}, folder=tmp_path)
    job.state(timeout=UP_S)
    wait_until(Path(job.folder, "hosts.json").exists, UP_S)
    job.detach()
    yield job
    job.kill()


def found_again(job: Job) -> JobState:
    """Return the job state of a later program, which finds the workers without the scheduler."""

    def state() -> JobState | None:
        try:
            return job_load(folder=Path(job.folder).parent.parent).state(timeout=0.0)
        except SchedulerUnreachable:
            return None  # A worker is not available until its last session has ended.

    return wait_until(state, UP_S)


def kill_worker(job: Job) -> str:
    """Kill the worker of `ones[1]`; return its address, at which nothing listens any more."""
    status = job.status()
    address = status.of("ones")[1].address
    os.kill(worker_pids(status.allocation_id)["ones", 1], signal.SIGKILL)
    name, _, port = str(address).rpartition("://")[2].rpartition(":")

    def is_closed() -> bool:
        # The session of the worker holds the port until it notices that the worker has died.
        try:
            socket.create_connection((name, int(port))).close()
        except ConnectionRefusedError:
            return True
        return False

    wait_until(is_closed, UP_S)
    return str(address)


def silence(patch: pytest.MonkeyPatch) -> None:
    def report(*_: object) -> None:
        raise SchedulerUnreachable("nobody answers")

    patch.setattr(ProcessBackend, "report", report)


def test_cached_workers_are_found_without_the_scheduler(
    known: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        silence(patch)
        state = found_again(known)
    assert state.ones.initialized.get(timeout=UP_S)


def test_a_job_that_is_declared_again_finds_its_cached_workers(
    known: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_again(known)
    known.detach()
    with monkeypatch.context() as patch:
        silence(patch)
        same = ProcessJob({"ones": 2}, folder=tmp_path)
        seen = []

        def state() -> JobState | None:
            try:
                return same.state(progress=seen.append)
            except SchedulerUnreachable:
                return None

        assert wait_until(state, UP_S).ones.extent == {"hosts": 2}
        assert [(status.up, len(status.hosts)) for status in seen] == [(2, 2)]
        # A different job must not use these workers.
        with pytest.raises(SchedulerUnreachable):
            ProcessJob({"ones": 1}, folder=tmp_path).state()


def test_the_next_program_notices_that_a_worker_has_exited(known: Job) -> None:
    kill_worker(known)
    with pytest.raises(JobEnded, match=r"ended: ones\[1\]"):
        job_load(folder=Path(known.folder).parent.parent).state(timeout=UP_S)


def test_a_different_worker_at_a_cached_address_is_not_used(known: Job) -> None:
    address = kill_worker(known)
    secret = Path(known.folder, "keys", "worker-ones-1.json")
    command = [sys.executable, "-m", "mesh_jobs.worker", "--mesh", "ones", "--rank", "1"]
    command += ["--listen", address, "--secret", str(secret)]

    def other_worker() -> subprocess.Popen[str] | None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        worker = subprocess.Popen(command, text=True, **pipes)
        assert worker.stdout is not None
        if worker.stdout.readline():
            return worker
        worker.communicate()
        return None

    other = wait_until(other_worker, UP_S)
    try:
        with pytest.raises(JobEnded, match=r"ended: ones\[1\]"):
            job_load(folder=Path(known.folder).parent.parent).state(timeout=UP_S)
    finally:
        other.terminate()
        other.communicate(timeout=UP_S)


@pytest.mark.parametrize(
    "content",
    [
        "",
        pytest.param("[]", marks=pytest.mark.slow),
        pytest.param("{}", marks=pytest.mark.slow),
        '{"allocation_id": 7}',
    ],
)
def test_an_invalid_host_cache_is_ignored(known: Job, content: str) -> None:
    Path(known.folder, "hosts.json").write_text(content)
    assert found_again(known).ones.initialized.get(timeout=UP_S)


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "{rank} of 'it' $HOME {}"
    folder.mkdir()
    job = ProcessJob({"ones": 1}, folder=folder)
    assert job.state(timeout=60).ones.initialized.get(timeout=60)
    job.kill()


def test_a_worker_that_starts_to_exit_during_a_query_is_reported_by_the_next_query(
    known: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    exiting: list[HostDraining] = []

    def leaving(backend: ProcessBackend, allocation: object) -> list[HostDraining]:
        # The scheduler does not know yet why it signals the worker to exit a moment later.
        exiting[:] = [HostDraining("ones", 0, "end", None, 1)]
        return []

    monkeypatch.setattr(ProcessBackend, "leaving", leaving)
    monkeypatch.setattr("mesh_jobs._job.job.leaving_here", lambda allocation_id: list(exiting))
    assert known.leaving() == []
    assert known.leaving() == exiting
