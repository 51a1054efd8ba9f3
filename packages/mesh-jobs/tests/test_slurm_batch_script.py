"""The batch script, as shown by `plan`."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mesh_core import ConfigError
from mesh_jobs import SlurmJob, SlurmOptions, SlurmWorkerOptions

RECORDING_SRUN = """#!/bin/sh
line="$MESH_NAME $MESH_FIRST"
for word; do
    case "$word" in --nodes=* | --relative=*) line="$line $word" ;; esac
done
echo "$line\""""


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
    assert first[:4] == ["serve", "a", "$first", "1"]
    assert second[:4] == ["serve", "b", "$first", "1"]
    assert {"--nodes=1", "--relative=$((first+0))"} <= set(first)
    assert {"--nodes=1", "--relative=$((first+2))"} <= set(second)


def test_each_host_has_its_own_step_up_to_a_maximum_number_of_steps(tmp_path: Path) -> None:
    """A node that boots again ends the steps that it was part of."""
    few, many = tmp_path / "few", tmp_path / "many"
    assert ran(few, {"a": 3, "b": 2}) == [
        *(f"a {rank} --nodes=1 --relative={rank}" for rank in range(3)),
        *(f"b {rank} --nodes=1 --relative={rank + 3}" for rank in range(2)),
    ]
    assert ran(many, {"a": 2, "b": 299}) == [
        "a 0 --nodes=2 --relative=0",
        *(f"b {rank} --nodes=3 --relative={rank + 2}" for rank in range(0, 297, 3)),
        "b 297 --nodes=2 --relative=299",
    ]
    # The steps did not record their end themselves, so the script did.
    ended = sorted(path.name for path in many.glob(".mesh/*/workers/b-*.ended"))
    assert ended == sorted(f"b-{rank}.ended" for rank in range(299))


def ran(folder: Path, meshes: dict[str, int]) -> list[str]:
    """Run the script where no task starts, and return its steps."""
    script = "\n".join(plan(folder, meshes))
    (workers,) = {line.split("=")[-1] for line in script.splitlines() if "MESH_WORKERS=" in line}
    Path(workers).mkdir(parents=True)
    srun = folder / "srun"
    srun.write_text(f"{RECORDING_SRUN} >> {folder}/steps\nexit 1\n")
    srun.chmod(0o700)
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[1-9]"}
    assert subprocess.run(["sh"], input=script, text=True, env=variables).returncode == 1
    lines = (folder / "steps").read_text().splitlines()
    return sorted(lines, key=lambda line: (line[0], int(line.split()[1])))


def test_requested_options_are_in_the_script(tmp_path: Path) -> None:
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


def test_unset_options_are_left_to_the_cluster(tmp_path: Path) -> None:
    words = directives(plan(tmp_path, options=SlurmOptions(exclusive=False)))
    left = ("--time", "--partition", "--account", "--qos", "--mem", "--cpus", "--gpus", "--excl")
    assert [word for word in words if word.startswith(left)] == []


def test_the_script_always_sets_the_requeue_option(tmp_path: Path) -> None:
    assert "--requeue" in directives(plan(tmp_path))
    assert "--no-requeue" in directives(plan(tmp_path, options=SlurmOptions(requeue=False)))


def test_different_meshes_are_components_of_one_heterogeneous_job(tmp_path: Path) -> None:
    job = SlurmJob({"a": 2}, options=SlurmOptions(account="lab"), folder=tmp_path)
    job.add_mesh("b", 1, gpus=2)
    lines = job.plan().splitlines()
    words = directives(lines)
    parts = words.index("hetjob")
    assert "--nodes=2" in words[:parts]
    assert {"--nodes=1", "--gpus-per-node=2"} <= set(words[parts:])
    assert words.count("--account=lab") == words.count("--no-kill") == 2
    assert ["--het-group=0" in steps(lines)[0], "--het-group=1" in steps(lines)[1]] == [True, True]


def test_an_invalid_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'h100', which is not an option"):
        plan(tmp_path, options=SlurmOptions(slurm_args=["--constraint", "h100"]))
    with pytest.raises(ConfigError, match=r"slurm_args is a list .*: put brackets"):
        SlurmOptions(slurm_args="--constraint=h100")
    with pytest.raises(ConfigError, match=r"setup is a list .*: put brackets"):
        SlurmWorkerOptions(setup="module load cuda")


def test_a_line_break_cannot_inject_a_line_into_the_script(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line breaks"):
        plan(tmp_path, options=SlurmOptions(partition="gpu\nrm -r ~"))


def test_the_script_is_valid_shell_in_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s 100% "mine" $HOME'
    folder.mkdir()
    workers = SlurmWorkerOptions(log_dir=tmp_path / "logs")
    job = SlurmJob({"a": 1}, workers=workers, folder=folder)
    subprocess.run(["sh", "-n"], input=job.plan(), text=True, check=True)


def test_the_script_contains_no_secret(tmp_path: Path) -> None:
    assert "PRIVATE" not in "\n".join(plan(tmp_path))


def test_output_is_written_to_the_configured_log_folder(tmp_path: Path) -> None:
    lines = plan(tmp_path, workers=SlurmWorkerOptions(log_dir=tmp_path / "logs"))
    assert f"--output={tmp_path}/logs/slurm-%j.log" in directives(lines)
    assert any(line.startswith(f"export MESH_LOGS={tmp_path}/logs/mesh-") for line in lines)
