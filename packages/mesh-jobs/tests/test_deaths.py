"""Programs that are killed at any point, or run concurrently, must leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh_core import Actor, HostDied, endpoint, this_host
from mesh_core.testing import wait_until
from mesh_jobs import JobEnded, JobPending, JobStatus, Phase, ProcessJob, job_load
from mesh_jobs.testing import worker_pids

UP_S = 60.0
APPLY = "from mesh_jobs import ProcessJob; ProcessJob({'ones': 3}).apply(); print('applied')"
KILL = "from mesh_jobs import job_load; job_load().kill(); print('killed')"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder and a temporary folder, in which a test must leave no files."""
    this_host()  # Create the temporary files of this program in the original folder.
    for name in ("work", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    yield tmp_path / "work"
    assert list((tmp_path / "work").iterdir()) == []
    # The agent of a job exits shortly after its worker.
    wait_until(lambda: not os.listdir(tmp_path / "tmp"), UP_S)


class Member(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


def program(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def kill_when(process: subprocess.Popen[str], path: Path) -> None:
    """Kill a program as soon as it creates or removes a file, unless it exits before."""
    was_there = path.exists()
    wait_until(lambda: path.exists() is not was_there or process.poll() is not None, UP_S)
    process.kill()
    process.communicate()


def test_two_workers_of_the_same_rank_are_one_host_and_are_both_terminated(place: Path) -> None:
    job = ProcessJob({"ones": 1}).apply()
    job.state(timeout=UP_S)
    allocation_id = str(job.status().allocation_id)
    # The process looks like a worker that a killed program started and the next one has not seen.
    words = ["mesh_jobs.worker", "--allocation-id", allocation_id, "--mesh", "ones", "--rank", "0"]
    command = [sys.executable, "-c", "import time; time.sleep(600)", *words]
    with subprocess.Popen(command, start_new_session=True) as second:
        wait_until(lambda: second.pid in worker_pids(allocation_id).values(), UP_S)
        assert job.status().is_up
        job.kill()
        assert second.wait(UP_S) == -signal.SIGTERM
    assert worker_pids(allocation_id) == {}


@pytest.mark.parametrize(
    "made",
    [
        "lock",
        pytest.param("keys/controller/identity.pem", marks=pytest.mark.slow),
        "job.json",
        "keys/worker-ones-0.json",
        pytest.param("logs/ones-0.log", marks=pytest.mark.slow),
        "logs/ones-1.log",
        pytest.param("logs/ones-2.log", marks=pytest.mark.slow),
    ],
)
def test_a_program_can_be_killed_at_any_point_of_apply(place: Path, made: str) -> None:
    kill_when(program(APPLY), place / ".mesh/default" / made)
    job = ProcessJob({"ones": 3}).apply()
    state = job.state(timeout=UP_S)
    members = state.ones.spawn_procs().spawn("members", Member)
    assert len(set(members.pid.call().get(timeout=UP_S).values())) == 3
    allocation_id = job.status().allocation_id
    assert len(worker_pids(allocation_id)) == 3
    job.kill()
    assert worker_pids(allocation_id) == {}


@pytest.mark.parametrize(
    "removed",
    [
        "workers/ones-0.json",
        pytest.param("keys", marks=pytest.mark.slow),
        pytest.param("logs", marks=pytest.mark.slow),
        "job.json",
    ],
)
def test_a_program_can_be_killed_at_any_point_of_kill(place: Path, removed: str) -> None:
    job = ProcessJob({"ones": 3}).apply()
    wait_until(lambda: job.status().is_up, UP_S)
    allocation_id = job.status().allocation_id
    kill_when(program(KILL), place / ".mesh/default" / removed)
    job.kill()
    assert worker_pids(allocation_id) == {}


def test_kill_succeeds_when_only_an_empty_folder_remains(place: Path) -> None:
    (place / ".mesh").mkdir()
    ProcessJob({"ones": 1}).kill()


def test_programs_that_apply_concurrently_get_the_same_hosts() -> None:
    programs = [program(APPLY) for _ in range(4)]
    assert [one.communicate(timeout=UP_S)[0] for one in programs] == ["applied\n"] * 4
    job = job_load()
    wait_until(lambda: job.status().is_up, UP_S)
    assert len(worker_pids(job.status().allocation_id)) == 3
    job.kill()


def test_programs_that_kill_concurrently_all_succeed() -> None:
    ProcessJob({"ones": 3}).apply()
    code = f"from mesh_jobs import ProcessJob\nProcessJob({{'ones': 3}}).kill()\n{'print(1)'}"
    programs = [program(code) for _ in range(4)]
    assert [one.communicate(timeout=UP_S)[0] for one in programs] == ["1\n"] * 4


def test_a_lost_host_is_replaced_in_the_same_mesh() -> None:
    job = ProcessJob({"ones": 2})
    ones = job.state(timeout=UP_S).ones
    members = ones.spawn_procs().spawn("members", Member)
    before = members.pid.call().get(timeout=UP_S).values()
    allocation_id = job.status().allocation_id
    os.kill(worker_pids(allocation_id)["ones", 1], signal.SIGKILL)
    with pytest.raises(HostDied):
        wait_until(lambda: members.slice(hosts=1).pid.call_one().get(timeout=UP_S) < 0, UP_S)
    with pytest.raises(JobEnded, match=r"ended: ones\[1\]"):
        job.state(timeout=UP_S)
    # A resize to the same size starts the missing hosts.
    job.resize(mesh="ones", hosts=2)
    assert job.state(timeout=UP_S).ones == ones
    after = members.pid.call().get(timeout=UP_S).values()
    assert after[0] == before[0]
    assert after[1] != before[1]
    job.kill()


def test_wait_reports_each_state_change_and_the_end() -> None:
    job = ProcessJob({"ones": 1}, ttl_s=1.0).apply()
    told: list[JobStatus] = []
    wait_until(lambda: job.status().is_up, UP_S)
    with pytest.raises(JobPending, match=r"still running after 0\.01 s"):
        job.wait(timeout=0.01)
    ended = job.wait(timeout=UP_S, progress=told.append)
    assert ended.state is Phase.ENDED
    assert [status.state for status in told] == [Phase.RUNNING, Phase.ENDED]
    with pytest.raises(JobEnded, match="mesh worker: unused") as raised:
        job_load().state(timeout=UP_S)
    assert "all workers have ended" in raised.value.reason
    job.kill()
