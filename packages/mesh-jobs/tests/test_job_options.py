"""The options of job classes: frozen, keyword-only, stored with the job."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import mesh_jobs
from mesh_core import ConfigError
from mesh_jobs import (
    ExistingPods,
    ImageSpec,
    Job,
    JobSpec,
    KubernetesJob,
    KubernetesOptions,
    PodOptions,
    SlurmJob,
    SlurmOptions,
    SlurmWorkerOptions,
    SSHJob,
    SSHOptions,
    SSHWorkerOptions,
)

OPTIONS = [
    ExistingPods(label_selector="app=trainers", pod_rank_label="place"),
    KubernetesOptions(workload="pods", port_forward=True),
    PodOptions(labels={"team": "blue"}, tolerations=[{"key": "gpu"}]),
    SlurmOptions(partition="gpu", array="0-3%2"),
    SlurmWorkerOptions(setup=["module load cuda"], replace_lost=True),
    SSHOptions(ssh_args=["-i", "key"]),
    SSHWorkerOptions(env={"A": "b"}, advertise="worker"),
]
_PARAMETERS_MAX = 10


@pytest.mark.parametrize("options", OPTIONS, ids=lambda one: type(one).__name__)
def test_options_are_frozen_keyword_only_and_picklable(options: Any) -> None:
    assert pickle.loads(pickle.dumps(options)) == options
    (first, *_) = dataclasses.fields(options)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, first.name, None)
    with pytest.raises(TypeError, match="positional"):
        type(options)("gpu")
    assert json.loads(json.dumps(options.to_json())) == options.to_json()


def test_constructors_of_jobs_and_options_have_few_parameters() -> None:
    classes = [getattr(mesh_jobs, name) for name in dir(mesh_jobs) if not name.startswith("_")]
    jobs = [one for one in classes if inspect.isclass(one) and issubclass(one, Job)]
    makers: list[Any] = [*jobs, *(one.add_mesh for one in jobs), *map(type, OPTIONS)]
    counts = {str(one): len(inspect.signature(one).parameters) for one in makers}
    assert {one: count for one, count in counts.items() if count > _PARAMETERS_MAX} == {}


@pytest.mark.parametrize("keyword", ["partition", "job_name", "python_exe"])
def test_unknown_keyword_is_a_type_error(keyword: str, tmp_path: Path) -> None:
    unknown: Any = {keyword: "gpu"}
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'"):
        SlurmJob({"a": 1}, folder=tmp_path, **unknown)


def jobs(folder: Path) -> list[Job]:
    pods = KubernetesJob("research", options=KubernetesOptions(kubeconfig="config"), folder=folder)
    pods.add_mesh("a", 2, image_spec=ImageSpec("image"), gpus=8, pods=PodOptions(port=7000))
    existing = KubernetesOptions(credentials_secret="keys")
    others = KubernetesJob("research", options=existing, folder=folder)
    others.add_mesh("a", 2, existing_pods=ExistingPods(label_selector="app=a"))
    slurm = SlurmOptions(partition="gpu", array=3)
    workers = SlurmWorkerOptions(log_dir="logs", setup=["module load cuda"])
    return [
        pods,
        others,
        SlurmJob({"a": 2}, gpus_per_node=8, options=slurm, workers=workers, folder=folder),
        SSHJob({"a": ["n1"]}, workers=SSHWorkerOptions(env={"A": "b"}), folder=folder),
    ]


def test_job_is_stored_with_its_options(tmp_path: Path) -> None:
    for job in jobs(tmp_path):
        stored = json.loads(json.dumps(job.spec.to_json()))
        assert JobSpec.from_json(stored).to_json() == job.spec.to_json()


def test_relative_paths_are_stored_as_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pods, _, slurm, _ = jobs(tmp_path)
    assert pods.spec.options["kubeconfig"] == str(tmp_path / "config")
    assert slurm.spec.options["log_dir"] == str(tmp_path / "logs")


def test_array_is_given_as_a_number_or_as_indices() -> None:
    assert SlurmOptions(array=3).indices() == [0, 1, 2]
    assert SlurmOptions(array="0-3,8%2").indices() == [0, 1, 2, 3, 8]
    assert SlurmOptions().indices() == []
    with pytest.raises(ConfigError, match="array is 0: give a number of tasks from 1 up"):
        SlurmOptions(array=0)
    with pytest.raises(ConfigError, match="array is 'all': give a number of tasks, or indices"):
        SlurmOptions(array="all")


def test_invalid_options_are_rejected_at_construction() -> None:
    with pytest.raises(ConfigError, match="ssh_args is a list of strings: put brackets"):
        SSHOptions(ssh_args="-i key")
    with pytest.raises(ConfigError, match="advertise is 'me': give 'ssh' or 'worker'"):
        SSHWorkerOptions(advertise="me")
    for port in (0, 65534):
        with pytest.raises(ConfigError, match=f"port is {port}: give one from 1 to 65533"):
            PodOptions(port=port)
        with pytest.raises(ConfigError, match=f"port is {port}: give one from 1 to 65533"):
            ExistingPods(label_selector="app=a", port=port)


def test_a_mesh_has_either_new_or_existing_pods(tmp_path: Path) -> None:
    existing = ExistingPods(label_selector="app=a")
    secret = KubernetesOptions(credentials_secret="keys")
    job = KubernetesJob("research", options=secret, folder=tmp_path)
    with pytest.raises(ConfigError, match="creates no pods for it: leave out image_spec and pods"):
        job.add_mesh("a", 1, pods=PodOptions(), existing_pods=existing)
    with pytest.raises(ConfigError, match="existing pods need both"):
        job.add_mesh("a", 1, image_spec=ImageSpec("image"))
    with pytest.raises(ConfigError, match="existing pods need both"):
        KubernetesJob("research", folder=tmp_path).add_mesh("a", 1, existing_pods=existing)
    with pytest.raises(ConfigError, match="leave out credentials_secret"):
        KubernetesJob("research", mesh_job="train", options=secret, folder=tmp_path)


def test_meshes_passed_as_the_namespace_are_refused_with_the_correct_call() -> None:
    wrong: Any = {"trainers": 2}
    with pytest.raises(ConfigError, match=r'not .*: KubernetesJob\("research"\)\.add_mesh\('):
        KubernetesJob(wrong)
