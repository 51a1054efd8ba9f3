"""The batch script, as shown by `plan`."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mesh_core import ConfigError
from mesh_jobs import SlurmJob, SlurmOptions, SlurmWorkerOptions


def plan(tmp_path: Path, meshes: dict[str, int] | None = None, **more: Any) -> list[str]:
    job = SlurmJob({"a": 2, "b": 1} if meshes is None else meshes, folder=tmp_path, **more)
    return job.plan().splitlines()


def directives(lines: list[str]) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def steps(lines: list[str]) -> list[list[str]]:
    return [shlex.split(line) for line in lines if " srun " in line]


def test_one_job_has_the_nodes_of_all_meshes(tmp_path: Path) -> None:
    lines = plan(tmp_path)
    assert "--nodes=3" in directives(lines)
    assert "hetjob" not in directives(lines)
    first, second = steps(lines)
    assert {"MESH_NAME=a", "--nodes=2", "--relative=0"} <= set(first)
    assert {"MESH_NAME=b", "--nodes=1", "--relative=2"} <= set(second)


def test_what_is_asked_for_is_in_the_script(tmp_path: Path) -> None:
    options = SlurmOptions(
        partition="gpu",
        account="lab",
        qos="high",
        mem="64G",
        cpus_per_task=8,
        slurm_args=["--constraint=h100"],
    )
    lines = plan(
        tmp_path,
        name="train",
        time_limit="4:00:00",
        gpus_per_node=4,
        options=options,
        workers=SlurmWorkerOptions(setup=["module load cuda"]),
    )
    asked = {"--time=4:00:00", "--partition=gpu", "--account=lab", "--qos=high", "--mem=64G"}
    asked |= {"--cpus-per-task=8", "--gpus-per-node=4", "--constraint=h100", "--exclusive"}
    assert asked <= set(directives(lines))
    assert "module load cuda" in lines
    assert any(word.startswith("--job-name=train-") for word in directives(lines))


def test_what_is_not_asked_for_is_left_to_the_cluster(tmp_path: Path) -> None:
    words = directives(plan(tmp_path, options=SlurmOptions(exclusive=False)))
    left = ("--time", "--partition", "--account", "--qos", "--mem", "--cpus", "--gpus", "--excl")
    assert [word for word in words if word.startswith(left)] == []


def test_whether_it_may_be_queued_again_is_always_said(tmp_path: Path) -> None:
    assert "--requeue" in directives(plan(tmp_path))
    assert "--no-requeue" in directives(plan(tmp_path, options=SlurmOptions(requeue=False)))


def test_unlike_meshes_are_parts_of_one_job(tmp_path: Path) -> None:
    job = SlurmJob({"a": 2}, options=SlurmOptions(account="lab"), folder=tmp_path)
    job.add_mesh("b", 1, gpus=2)
    lines = job.plan().splitlines()
    words = directives(lines)
    parts = words.index("hetjob")
    assert "--nodes=2" in words[:parts]
    assert {"--nodes=1", "--gpus-per-node=2"} <= set(words[parts:])
    assert words.count("--account=lab") == words.count("--no-kill") == 2
    assert ["--het-group=0" in steps(lines)[0], "--het-group=1" in steps(lines)[1]] == [True, True]


def test_option_that_is_none_is_refused_and_not_dropped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'h100', which is not an option"):
        plan(tmp_path, options=SlurmOptions(slurm_args=["--constraint", "h100"]))
    with pytest.raises(ConfigError, match=r"slurm_args is a list .*: put brackets"):
        SlurmOptions(slurm_args="--constraint=h100")
    with pytest.raises(ConfigError, match=r"setup is a list .*: put brackets"):
        SlurmWorkerOptions(setup="module load cuda")


def test_line_break_cannot_smuggle_a_line_into_the_script(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line breaks"):
        plan(tmp_path, options=SlurmOptions(partition="gpu\nrm -r ~"))


def test_shell_understands_the_script_in_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s 100% "mine" $HOME'
    folder.mkdir()
    workers = SlurmWorkerOptions(log_dir=tmp_path / "logs")
    job = SlurmJob({"a": 1}, workers=workers, folder=folder)
    subprocess.run(["sh", "-n"], input=job.plan(), text=True, check=True)


def test_nothing_secret_is_in_the_script(tmp_path: Path) -> None:
    assert "PRIVATE" not in "\n".join(plan(tmp_path))


def test_output_goes_where_the_user_wants_it(tmp_path: Path) -> None:
    lines = plan(tmp_path, workers=SlurmWorkerOptions(log_dir=tmp_path / "logs"))
    assert f"--output={tmp_path}/logs/slurm-%j.log" in directives(lines)
    assert any(line.startswith(f"export MESH_LOGS={tmp_path}/logs/mesh-") for line in lines)
