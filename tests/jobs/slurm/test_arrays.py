"""Several independent jobs from one submission."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mesh_jobs import JobError, Phase, SlurmOptions, job_load
from tests.jobs.slurm.jobs import Jobs, ids, names, said, status_when

SCRIPT = """
import os, sys
from mesh_jobs import SlurmJob, SlurmOptions
index = int(os.environ["SLURM_ARRAY_TASK_ID"])
state = SlurmJob({"a": 1}, options=SlurmOptions(array=3), context="sweep").state(timeout=60)
print(state.a.extent, index)
sys.exit(index)
"""


def test_each_task_of_an_array_is_a_separate_job(jobs: Jobs, tmp_path: Path) -> None:
    array = jobs({"a": 1}, "sweep", options=SlurmOptions(array=3)).apply()
    first, second, third = array.tasks
    assert [task.context for task in array.tasks] == ["sweep-0", "sweep-1", "sweep-2"]
    states = [task.state(timeout=30) for task in array.tasks]
    assert len({names(state.a)[0] for state in states}) == 3
    assert array.apply().status().reason == "3 RUNNING"
    with pytest.raises(JobError, match="sweep-0"):
        array.state()
    second.kill()
    assert len(ids()) == 2
    assert names(first.state(timeout=30).a) == names(states[0].a)
    assert [task.context for task in array.tasks] == ["sweep-0", "sweep-2"]
    assert job_load("sweep-2", folder=tmp_path).status().is_up
    third.resize(mesh="a", hosts=2)
    status_when(third, lambda status: status.is_up)
    assert len(ids()) == 3
    array.kill()
    assert ids() == []
    assert not (tmp_path / ".mesh").exists()


def test_each_task_runs_the_script_and_has_its_own_exit_status(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    array = jobs({"a": 1}, "sweep", options=SlurmOptions(array="0-2%2", exclusive=False))
    ended = array.apply(script).wait(timeout=60)
    assert [task.status().exit_code for task in array.tasks] == [0, 1, 2]
    assert [task.client_logs() for task in array.tasks] == [f"{{hosts: 1}} {n}" for n in range(3)]
    assert ended.exit_code == 1
    assert ids() == []


def test_tasks_are_found_after_the_submitting_program_was_killed(
    jobs: Jobs, tmp_path: Path
) -> None:
    """The program is killed before it can record the ids that the scheduler assigned."""
    program = "import os, sys\nfrom mesh_jobs import SlurmJob, SlurmOptions\n"
    program += "from mesh_jobs._slurm import backend\n"
    program += "backend.note_tasks = lambda *_: os.kill(os.getpid(), 9)\n"
    program += "SlurmJob({'a': 1}, name='test', time_limit=10, options=SlurmOptions(array=2),"
    program += " context='sweep', folder=sys.argv[1]).apply()"
    said("sh", "-c", '"$@" || true', "sh", sys.executable, "-c", program, str(tmp_path))
    assert len(ids()) == 2
    with pytest.raises(JobError, match="call apply"):
        job_load("sweep-1", folder=tmp_path).status()
    array = jobs({"a": 1}, "sweep", options=SlurmOptions(array=2)).apply()
    assert len(ids()) == 2
    for task in array.tasks:
        assert task.state(timeout=30)
    array.tasks[0].kill()
    assert status_when(array, lambda status: status.state is Phase.RUNNING)
