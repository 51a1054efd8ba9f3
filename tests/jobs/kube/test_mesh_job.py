"""MeshJobs managed by a cluster-wide operator, and programs that use their hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiException

from mesh_core import ConfigError
from mesh_jobs import (
    ExistingPods,
    JobEnded,
    JobError,
    KubernetesJob,
    KubernetesOptions,
    job_load,
)
from tests.jobs.kube.cluster import PATIENCE_S, Cluster, eventually
from tests.jobs.kube.image import MISSING, PYTHON
from tests.jobs.kube.operators import MeshJobs, OperatorProcess, manifests, mesh, rules
from tests.jobs.kube.pods import ADDRESS, TCP_PROBE, pod, running, waiting_python
from tests.jobs.kube.test_kubernetes_job import ranks_of


@pytest.fixture(scope="module")
def mesh_jobs(cluster: Cluster) -> Iterator[MeshJobs]:
    """An operator with exactly the permissions that its manifests request."""
    made = manifests("--all-namespaces", "--namespace", "mesh-system")
    namespace = cluster.make_namespace()
    user = cluster.user(namespace, rules("ClusterRole", "Role", made=made), is_everywhere=True)
    served = MeshJobs(cluster)
    where = ("--all-namespaces", "--lease-namespace", namespace, "--lease", "2")
    operator = OperatorProcess(user, *where)
    yield served
    told = operator.end().splitlines()
    cluster.delete_namespace(namespace)
    # A namespace may be deleted before its MeshJobs, whose objects it then refuses.
    refused = re.compile(r'is being terminated|namespaces "[a-z0-9-]+" not found')
    assert [line for line in told if not refused.search(line)] == []


def _job(
    cluster: Cluster,
    namespace: str,
    folder: Path,
    mesh_job: str | None = None,
    credentials_secret: str | None = None,
) -> KubernetesJob:
    options = KubernetesOptions(
        kubeconfig=cluster.kubeconfig, credentials_secret=credentials_secret
    )
    return KubernetesJob(
        namespace, timeout=PATIENCE_S, mesh_job=mesh_job, options=options, folder=folder
    )


def test_the_hosts_of_a_mesh_job_are_created_and_deleted_with_it(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs, tmp_path: Path
) -> None:
    mesh_jobs.create(namespace, "train", mesh(hosts=1))
    job = _job(cluster, namespace, tmp_path, mesh_job="train")
    assert ranks_of(job) == [0]
    assert "mesh worker serves" in job.logs("workers", 0)
    eventually(lambda: mesh_jobs.is_ready(namespace, "train"))
    status = mesh_jobs.get(namespace, "train")["status"]
    assert (status["hosts"], status["up"]) == (1, 1)
    (first,) = job.status().hosts

    mesh_jobs.patch(namespace, "train", mesh(hosts=2))
    eventually(lambda: mesh_jobs.get(namespace, "train")["status"]["up"] == 2)
    again = _job(cluster, namespace, tmp_path, mesh_job="train")
    again.detach()
    assert ranks_of(again) == [0, 1]
    assert again.status().hosts[0] == first
    again.detach()

    mesh_jobs.delete(namespace, "train")
    eventually(lambda: not cluster.leftovers(namespace))
    with pytest.raises(JobEnded, match="MeshJob train was deleted"):
        job_load(folder=tmp_path).state(PATIENCE_S)
    again.kill()


def test_a_program_resizes_a_mesh_job_and_does_not_delete_it(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs, tmp_path: Path
) -> None:
    mesh_jobs.create(namespace, "train", mesh(hosts=2))
    user = cluster.user(namespace, _attaching_rules(cluster, namespace, tmp_path))
    job = KubernetesJob(
        namespace,
        timeout=PATIENCE_S,
        mesh_job="train",
        options=KubernetesOptions(kubeconfig=user),
        folder=tmp_path,
    )
    job.state()
    job.resize(mesh="workers", hosts=1)
    eventually(lambda: len(cluster.pods(namespace)) == 1)
    assert job.status().is_up
    job.kill()
    assert mesh_jobs.is_ready(namespace, "train")


def test_an_upgrade_of_the_definition_does_not_affect_running_mesh_jobs(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs
) -> None:
    mesh_jobs.create(namespace, "train", mesh(hosts=1))
    eventually(lambda: mesh_jobs.is_ready(namespace, "train"))
    mesh_jobs.upgrade({"priority": {"type": "string", "default": "normal"}})
    eventually(lambda: "priority" in mesh_jobs.get(namespace, "train")["spec"]["meshes"][0])
    mesh_jobs.patch(namespace, "train", mesh(hosts=2))
    eventually(lambda: mesh_jobs.get(namespace, "train")["status"]["up"] == 2)
    eventually(
        lambda: mesh_jobs.condition(namespace, "train", "Failed") == ("False", "NoHostFailed")
    )
    mesh_jobs.delete(namespace, "train")
    eventually(lambda: not cluster.leftovers(namespace))


@pytest.mark.parametrize("change", [{"python": PYTHON, "env": {}}, {"port": 26600}])
def test_an_explicit_default_is_not_a_change(
    namespace: str, mesh_jobs: MeshJobs, change: dict[str, Any]
) -> None:
    mesh_jobs.create(namespace, "train", mesh())
    eventually(lambda: mesh_jobs.is_ready(namespace, "train"))
    mesh_jobs.patch(namespace, "train", mesh(**change))
    eventually(lambda: mesh_jobs.is_ready(namespace, "train"))
    assert mesh_jobs.condition(namespace, "train", "Failed")[0] == "False"
    mesh_jobs.delete(namespace, "train")


def test_resources_may_be_decimal_numbers(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs
) -> None:
    mesh_jobs.create(namespace, "small", mesh(resources={"cpu": 0.5, "memory": "64Mi"}))
    eventually(lambda: len(cluster.pods(namespace)) == 1)
    (made,) = cluster.pods(namespace)
    (worker,) = made.spec.containers
    assert worker.resources.requests["cpu"] == "0.5"
    mesh_jobs.create(namespace, "wrong", mesh(resources={"cpu": [1]}))
    eventually(lambda: mesh_jobs.condition(namespace, "wrong", "Ready") == ("False", "InvalidSpec"))
    for name in ("small", "wrong"):
        mesh_jobs.delete(namespace, name)


def _attaching_rules(cluster: Cluster, namespace: str, folder: Path) -> list[Any]:
    role = _job(cluster, namespace, folder, mesh_job="train").role()
    return list(yaml.safe_load(role)["rules"])


@pytest.mark.parametrize("workload", ["statefulset", "pods"])
def test_other_workloads_can_be_hosts(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs, workload: str
) -> None:
    mesh_jobs.create(namespace, "train", mesh("ones"), mesh("others", 2), workload=workload)
    eventually(lambda: mesh_jobs.is_ready(namespace, "train"))
    mesh_jobs.patch(namespace, "train", mesh("ones"), mesh("others", 1))
    eventually(lambda: len(cluster.pods(namespace)) == 2)
    eventually(lambda: mesh_jobs.is_ready(namespace, "train"))
    mesh_jobs.delete(namespace, "train")
    eventually(lambda: not cluster.leftovers(namespace))


def test_mesh_jobs_are_deleted_with_their_namespace(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs, local_files: Path
) -> None:
    for workload in ("job", "statefulset", "pods"):
        waiting = mesh(python=waiting_python(local_files))
        mesh_jobs.create(namespace, workload, waiting, workload=workload)
    eventually(lambda: running(cluster, namespace) == 3)
    cluster.delete_namespace(namespace)
    assert mesh_jobs.names(namespace) == []


def test_the_reason_why_hosts_do_not_start_is_reported(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs
) -> None:
    gpus = {"nvidia.com/gpu": 1000}
    mesh_jobs.create(namespace, "greedy", mesh(resources=gpus))
    mesh_jobs.create(
        namespace, "hangs", mesh(image=MISSING, annotations={"test/kubelet": "hang-pull"})
    )

    def told(name: str, type: str) -> tuple[str, str]:
        return mesh_jobs.condition(namespace, name, type)

    eventually(lambda: told("greedy", "Progressing") == ("True", "Unschedulable"))
    assert told("greedy", "Failed")[0] == "False"
    eventually(lambda: told("hangs", "Failed") == ("True", "ImagePullBackOff"))
    conditions = mesh_jobs.get(namespace, "greedy")["status"]["conditions"]
    assert any("Insufficient nvidia.com/gpu" in one["message"] for one in conditions)
    # Running pods stay unchanged, because their image is immutable.
    mesh_jobs.patch(namespace, "greedy", mesh(image="another"))
    eventually(lambda: told("greedy", "Progressing") == ("False", "SpecChanged"))
    for name in ("greedy", "hangs"):
        mesh_jobs.delete(namespace, name)
    eventually(lambda: not cluster.leftovers(namespace))


def test_an_unused_mesh_job_finishes_and_is_deleted_after_its_ttl(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs
) -> None:
    mesh_jobs.create(namespace, "short", mesh(), ttlSeconds=1, ttlSecondsAfterFinished=1)
    mesh_jobs.create(namespace, "stays", mesh(), ttlSeconds=1)
    eventually(lambda: mesh_jobs.names(namespace) == ["stays"])
    eventually(
        lambda: mesh_jobs.condition(namespace, "stays", "Progressing") == ("False", "Finished")
    )
    assert mesh_jobs.condition(namespace, "stays", "Failed")[0] == "False"
    mesh_jobs.delete(namespace, "stays")
    eventually(lambda: not cluster.leftovers(namespace))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hosts": 0}, "greater than or equal to 1"),
        ({"hosts": "two"}, "must be of type integer"),
        ({"name": "No Name"}, "should match"),
        ({"port": 65534}, "less than or equal to 65533"),
        ({"pullPolicy": "Perhaps"}, "Unsupported value"),
        ({"image": None}, "podTemplate|anyOf"),
    ],
)
def test_an_invalid_mesh_job_is_refused(
    namespace: str, mesh_jobs: MeshJobs, change: Any, told: str
) -> None:
    wanted = {key: value for key, value in {**mesh(), **change}.items() if value is not None}
    with pytest.raises(ApiException, match=f"(?s)422.*({told})"):
        mesh_jobs.create(namespace, "wrong", wanted)


def test_two_meshes_with_the_same_name_are_refused(namespace: str, mesh_jobs: MeshJobs) -> None:
    with pytest.raises(ApiException, match=r"(?s)422.*Duplicate value"):
        mesh_jobs.create(namespace, "wrong", mesh(), mesh())


def test_an_invalid_name_is_refused_or_reported(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs
) -> None:
    """A real server evaluates the rule on the name; with the stand-in the status reports it."""
    if not cluster.is_stand_in:
        with pytest.raises(ApiException, match=r"(?s)422.*at most 40 lower-case letters"):
            mesh_jobs.create(namespace, "my.job", mesh())
        return
    mesh_jobs.create(namespace, "my.job", mesh())
    told = ("True", "InvalidSpec")
    eventually(lambda: mesh_jobs.condition(namespace, "my.job", "Failed") == told)


def test_a_missing_mesh_job_raises_an_error(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs, tmp_path: Path
) -> None:
    job = _job(cluster, namespace, tmp_path, mesh_job="none")
    with pytest.raises(JobError, match="there is no MeshJob none"):
        job.apply()
    with pytest.raises(ConfigError, match="defines its own meshes"):
        job.add_mesh("workers", 1)


def test_existing_pods_can_be_hosts(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The ranks are taken from a label, or from the names of the pods."""
    secret = json.loads(KubernetesJob.new_secret("keys"))
    cluster.core.create_namespaced_secret(namespace, secret)
    key = {"secretKeyRef": {"name": "keys", "key": "worker"}}
    env = [ADDRESS, {"name": "MESH_WORKER_SECRET", "valueFrom": key}]

    def make(name: str, rank: int, labels: dict[str, str]) -> None:
        words = ["-m", "mesh_jobs.worker", "--mesh", name, "--rank", str(rank)]
        words += ["--listen", "tcp://env:POD_IP:26600", "--secret", "env:MESH_WORKER_SECRET"]
        env_of = [*env, {"name": "MESH_RANK", "value": str(rank)}]
        body = pod(name, "", env=env_of, readinessProbe=TCP_PROBE, meta={"labels": labels})
        body["spec"]["containers"][0]["command"] = [PYTHON, *words]
        cluster.core.create_namespaced_pod(namespace, body)

    make("by-name-0", 0, {"app": "named"})
    make("by-name-1", 1, {"app": "named"})
    make("by-label", 0, {"app": "labelled", "place": "0"})
    job = _job(cluster, namespace, tmp_path, credentials_secret="keys")
    named = ExistingPods(label_selector="app=named")
    job.add_mesh("workers", 2, existing_pods=named)
    labelled = ExistingPods(label_selector="app=labelled", pod_rank_label="place")
    job.add_mesh("others", 1, existing_pods=labelled)
    assert ranks_of(job) == [0, 1]
    assert len(job.state().others) == 1
    assert "mesh worker serves" in job.logs("others", 0)
    before = len(cluster.pods(namespace))
    job.kill()
    assert len(cluster.pods(namespace)) == before
    with pytest.raises(ConfigError, match="existing pods need both"):
        _job(cluster, namespace, tmp_path).add_mesh("workers", 1, existing_pods=named)
