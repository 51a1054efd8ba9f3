"""A script that runs inside the job, on its first node."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh_jobs import SlurmOptions, job_load
from tests.jobs.slurm.jobs import Jobs, ids, said, wait_for_no_jobs

UNLIKE = """
import os, sys
from mesh_jobs import SlurmJob
job = SlurmJob({"trainers": 2, "servers": 1})
state = job.state(timeout=60)
print(state.trainers.extent, state.servers.extent, os.environ["SLURM_JOB_NUM_NODES"])
print(job.remaining() is not None, flush=True)
job.resize(mesh="servers", hosts=2)
sys.exit(7)
"""

AGAIN = """
import os, signal, subprocess, sys
from mesh_jobs import job_load
print("restart", os.environ.get("SLURM_RESTART_COUNT", 0), job_load().state(timeout=60).a.extent)
if "SLURM_RESTART_COUNT" not in os.environ:
    def told(*_):
        print("told to end", flush=True)
        sys.exit(1)
    signal.signal(signal.SIGTERM, told)
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
    signal.pause()
"""


def test_a_job_with_different_nodes_has_the_exit_status_of_its_script(
    jobs: Jobs, tmp_path: Path
) -> None:
    """It is also the exit status of the job, including nodes that the script has added."""
    (tmp_path / "train.py").write_text(UNLIKE)
    job = jobs({}, options=SlurmOptions(exclusive=False)).add_mesh("trainers", 2, gpus=2, cpus=4)
    job.add_mesh("servers", 1, cpus=1, memory="100M").apply(tmp_path / "train.py")
    assert len(ids()) == 2, "two parts of one job"
    assert all("+" in one for one in ids())
    whole = ids()[0].partition("+")[0]
    status = job.wait(timeout=60)
    assert status.exit_code == 7
    # The script has resized a mesh.
    said_inside = job_load(folder=tmp_path).client_logs()
    assert said_inside == "{hosts: 2} {hosts: 1} 2\nTrue"
    shown = said("scontrol", "--oneliner", "show", "job", whole).splitlines()[0]
    assert "JobState=FAILED" in shown
    assert "ExitCode=7:0" in shown
    wait_for_no_jobs()


@pytest.mark.slow
def test_the_script_runs_again_when_the_job_is_requeued(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(AGAIN)
    job = jobs({"a": 2}).apply(tmp_path / "train.py")
    assert job.wait(timeout=60).exit_code == 0
    said_inside = job.client_logs().splitlines()
    assert said_inside == ["restart 0 {hosts: 2}", "told to end", "restart 1 {hosts: 2}"]
