"""Jobs get hosts from SLURM, keep them across programs, and release them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mesh_jobs import JobEnded, JobError, JobPending, Phase, SlurmOptions, SlurmWorkerOptions
from tests.jobs.slurm.jobs import Jobs, ids, members, names, said, status_when
from tools.workspace import ROOT

AGAIN = """
import sys
from mesh_jobs import SlurmJob
from tests.jobs.slurm.jobs import names
job = SlurmJob({"a": 2}, name="test", time_limit=10, folder=sys.argv[1])
print(*names(job.state(timeout=30).a))
"""

OUTSIDER = """
import sys
from mesh_core import Credentials, attach_to_workers, configured
with configured(attach_timeout_s=3.0):
    theirs = Credentials.create(valid_for=3600)
    attach_to_workers(sys.argv[1:], credentials=theirs).initialized.get(timeout=30)
"""

BEGIN = """
import sys
from mesh_jobs import SlurmJob
SlurmJob({"a": 1}, name="test", time_limit=10, folder=sys.argv[1]).apply()
"""


def test_one_job_has_the_hosts_of_all_meshes(jobs: Jobs) -> None:
    state = jobs({"a": 2, "b": 1}).state(timeout=30)
    found = names(state.a) + names(state.b)
    assert len(set(found)) == 3
    assert len(ids()) == 1


def test_processes_on_nodes_are_listed_while_the_program_runs(jobs: Jobs) -> None:
    job = jobs({"a": 2})
    procs = job.state(timeout=30).a.spawn_procs({"procs": 1})
    procs.initialized.get(timeout=30)
    command = [sys.executable, "-c", "from mesh_jobs._cli.main import main; main()", "ps", "--json"]
    folder = Path(job.folder).parent.parent
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    hosts = json.loads(run.stdout)
    assert [(one["rank"], one["error"]) for one in hosts] == [(0, None), (1, None)]
    kinds = [[process["kind"] for process in one["processes"]] for one in hosts]
    assert [(one.count("worker"), one.count("proc")) for one in kinds] == [(1, 1), (1, 1)]
    procs.stop().get(timeout=30)


def test_another_program_uses_the_same_job(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs({"a": 2}).apply()
    words = [sys.executable, "-c", AGAIN, str(tmp_path)]
    runs = [
        subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(ids()) == 1
    assert job.status().is_up


def test_a_job_can_be_killed_repeatedly(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs({"a": 1})
    job.state(timeout=30)
    for _ in range(2):
        job.kill()
        assert ids() == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_program_killed_during_submission_leaves_one_job(jobs: Jobs, tmp_path: Path) -> None:
    """The submitting command has started and is slow."""
    slow = tmp_path / "slow"
    slow.mkdir()
    command = slow / "sbatch"
    begun, go = slow / "begun", slow / "go"
    real = said("which", "sbatch").strip()
    command.write_text(
        f'#!/bin/sh\n: > {begun}\nwhile [ ! -e {go} ]; do sleep 0.05; done\nexec {real} "$@"\n'
    )
    command.chmod(0o755)
    words = ["env", f"PATH={slow}:/usr/sbin:/usr/bin:/bin", sys.executable, "-c", BEGIN]
    with subprocess.Popen([*words, str(tmp_path)], cwd=ROOT) as program:
        while not begun.exists():
            assert program.poll() is None
        program.kill()
    job = jobs({"a": 1})
    with subprocess.Popen([sys.executable, "-c", BEGIN, str(tmp_path)], cwd=ROOT) as second:
        go.touch()
        assert second.wait(60) == 0
    assert len(ids()) == 1
    assert len(names(job.state(timeout=30).a)) == 1


def test_meshes_can_request_different_nodes(jobs: Jobs) -> None:
    job = jobs({}, options=SlurmOptions(exclusive=False))
    job.add_mesh("trainers", 2, gpus=2, cpus=4).add_mesh("servers", 1, cpus=1, memory="100M")
    state = job.state(timeout=30)
    devices = members(state.trainers).variable.call("CUDA_VISIBLE_DEVICES").get(timeout=30)
    assert devices.values() == ["0,1", "0,1"]
    devices = members(state.servers).variable.call("CUDA_VISIBLE_DEVICES").get(timeout=30)
    assert devices.values() == [None]
    assert "#SBATCH hetjob" in job.plan()


def test_two_jobs_share_a_node(jobs: Jobs) -> None:
    shared = SlurmOptions(exclusive=False, slurm_args=["--constraint=only-n2"], mem="100M")
    both = [jobs({"a": 1}, context, options=shared) for context in ("one", "two")]
    states = [job.state(timeout=30) for job in both]
    assert [names(state.a) for state in states] == [["n2"], ["n2"]]
    assert len(ids()) == 2


def test_a_pending_job_reports_the_reason(jobs: Jobs) -> None:
    only = SlurmOptions(slurm_args=["--constraint=only-n1"])
    jobs({"a": 1}, "one", options=only).state(timeout=30)
    second = jobs({"a": 1}, "two", options=only)
    with pytest.raises(JobPending, match=r"PENDING \(Resources\)|PENDING \(Priority\)"):
        second.state(timeout=3)
    second.kill()
    assert len(ids()) == 1


def test_state_raises_an_error_after_the_timeout_of_the_job(jobs: Jobs) -> None:
    later = SlurmOptions(slurm_args=["--begin=now+1hour"])
    job = jobs({"a": 1}, timeout=0.5, options=later)
    with pytest.raises(JobPending, match="BeginTime"):
        job.state()


def test_a_rejected_submission_has_the_error_message_of_the_scheduler(jobs: Jobs) -> None:
    with pytest.raises(JobError, match="invalid partition specified"):
        jobs({"a": 1}, options=SlurmOptions(partition="nowhere")).apply()
    with pytest.raises(JobError, match="node configuration is not available"):
        jobs({"a": 1}, gpus_per_node=3).apply()
    assert ids() == []


def test_the_error_contains_the_output_of_a_worker_that_cannot_start(jobs: Jobs) -> None:
    broken = SlurmWorkerOptions(python="/bin/ls")
    with pytest.raises(JobEnded, match=r"unrecognized option|invalid option"):
        jobs({"a": 1}, workers=broken).state(timeout=30)


def test_a_client_with_wrong_credentials_is_refused(jobs: Jobs) -> None:
    job = jobs({"a": 1})
    state = job.state(timeout=30)
    assert names(state.a)
    address = job.status().hosts[0].address
    assert address is not None
    words = [sys.executable, "-c", OUTSIDER, address]
    outsider = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "HostDied" in outsider.stderr, outsider
    assert names(state.a)


def test_only_the_owner_can_read_the_secrets(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs({"a": 1})
    job.state(timeout=30)
    secrets = [path for path in tmp_path.rglob("keys/**/*") if path.is_file()]
    assert secrets
    assert {path.stat().st_mode & 0o77 for path in secrets} == {0}
    shown = said("scontrol", "write", "batch_script", ids()[0], "-")
    assert "PRIVATE" not in shown


def test_an_unused_job_ends(jobs: Jobs) -> None:
    job = jobs({"a": 2}, ttl_s=0.5).apply()
    ended = status_when(job, lambda status: status.state is Phase.ENDED)
    assert "COMPLETED" in ended.reason
    assert "mesh worker: unused" in job.logs("a", 0)


def test_the_memory_of_a_mesh_overrides_the_memory_of_the_job(jobs: Jobs) -> None:
    job = jobs({}, options=SlurmOptions(mem="100M"))
    job.add_mesh("a", 1, memory="200M").add_mesh("b", 1, memory="200M")
    job.state(timeout=30)
    shown = said("squeue", "--noheader", "--format=%m")
    assert shown.strip() == "200M"


def test_a_mesh_grows_and_shrinks_without_affecting_other_meshes(jobs: Jobs) -> None:
    job = jobs({"a": 2, "b": 1})
    before = status_when(job.apply(), lambda status: status.is_up)
    job.resize(mesh="a", hosts=1)
    assert [host.address for host in job.status().of("a")] == [before.of("a")[0].address]
    assert job.status().of("b") == before.of("b")
    job.resize(mesh="a", hosts=3)
    status = status_when(job, lambda status: status.is_up)
    assert status.of("a")[0] == before.of("a")[0]
    assert status.of("b") == before.of("b")
    assert len(set(names(job.state(timeout=30).a))) == 3
    assert len(ids()) == 2
    job.resize(mesh="a", hosts=1)
    assert len(ids()) == 1


def test_a_program_can_run_inside_a_batch_job(jobs: Jobs, tmp_path: Path) -> None:
    """The resources of the batch job differ from those that the new job requests."""
    program = f"cd {ROOT} && {sys.executable} -c '{BEGIN}' {tmp_path}"
    said("sbatch", "--wait", "--ntasks=3", "--nodes=1", "--output=/dev/null", f"--wrap={program}")
    job = jobs({"a": 1})
    assert len(names(job.state(timeout=30).a)) == 1
