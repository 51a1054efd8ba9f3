"""All meshes of a job as one JobSet, on clusters that support JobSets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from mesh_jobs import (
    ImageSpec,
    JobError,
    KubernetesJob,
    KubernetesOptions,
    NotSupported,
    PodOptions,
)
from tests.jobs.kube.cluster import PATIENCE_S, Cluster, eventually
from tests.jobs.kube.image import IMAGE, NAME
from tests.jobs.kube.pods import running, waiting_python
from tests.jobs.kube.test_kubernetes_job import ranks_of

GROUP = "jobset.x-k8s.io"


def _job(cluster: Cluster, namespace: str, folder: Path, image: ImageSpec = IMAGE) -> KubernetesJob:
    job = KubernetesJob(
        namespace,
        name="a-job-with-a-rather-long-name",
        timeout=PATIENCE_S,
        options=KubernetesOptions(workload="jobset", kubeconfig=cluster.kubeconfig),
        folder=folder,
    )
    pods = PodOptions(labels={"kueue.x-k8s.io/queue-name": "blue"})
    job.add_mesh("workers", 2, image_spec=image, pods=pods)
    return job.add_mesh("others-with-a-long-name", 1, image_spec=image)


@pytest.fixture
def served(stand_in: Cluster) -> Iterator[None]:
    """A cluster with JobSets, which the controller of the stand-in manages."""
    definitions: Any = client.ApiextensionsV1Api(stand_in.client)
    names = {"plural": "jobsets", "singular": "jobset", "kind": "JobSet"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha2", "served": True, "storage": True, "schema": schema}
    spec = {"group": GROUP, "names": names, "scope": "Namespaced"}
    spec["versions"] = [{**version, "subresources": {"status": {}}}]
    body = {"metadata": {"name": f"jobsets.{GROUP}"}, "spec": spec}
    definitions.create_custom_resource_definition(body)
    yield
    definitions.delete_custom_resource_definition(f"jobsets.{GROUP}")


def test_a_job_set_can_be_planned_without_cluster_support(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    job = _job(cluster, namespace, tmp_path)
    *_, made = yaml.safe_load_all(job.plan())
    assert made["kind"] == "JobSet"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "blue"
    parts = made["spec"]["replicatedJobs"]
    assert [one["template"]["spec"]["completions"] for one in parts] == [2, 1]
    # The length of its pod names: JobSet rejects names that would be longer than 63.
    longest = max(len(one["name"]) for one in parts)
    assert len(made["metadata"]["name"]) + longest + len("--0-99999-abcde") <= 63


def test_a_cluster_without_job_set_support_is_reported(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match="has no jobsets: install their controller"):
        _job(cluster, namespace, tmp_path).apply()
    with pytest.raises(JobError, match="has no jobsets"):
        _job(cluster, namespace, tmp_path).plan(check=True)
    assert not cluster.leftovers(namespace)


@pytest.mark.usefixtures("served")
def test_a_job_set_contains_all_meshes(stand_in: Cluster, namespace: str, tmp_path: Path) -> None:
    job = _job(stand_in, namespace, tmp_path)
    assert ranks_of(job) == [0, 1]
    assert len(job.state()["others-with-a-long-name"]) == 1
    with pytest.raises(NotSupported, match="the size of a JobSet cannot change"):
        job.resize(mesh="workers", hosts=1)
    job.kill()
    eventually(lambda: not stand_in.leftovers(namespace))


@pytest.mark.usefixtures("served")
def test_a_job_set_is_deleted_with_its_namespace(
    stand_in: Cluster, namespace: str, tmp_path: Path
) -> None:
    image = ImageSpec(NAME, python=waiting_python(tmp_path))
    _job(stand_in, namespace, tmp_path, image).apply()
    eventually(lambda: running(stand_in, namespace) == 3)
    stand_in.delete_namespace(namespace)
    assert not stand_in.leftovers(namespace)
