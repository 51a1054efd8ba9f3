"""All hosts of a job are admitted together by a queue of Kueue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from mesh_core import ConfigError
from mesh_jobs import ImageSpec, KubernetesJob, KubernetesOptions, NotSupported, Phase
from tests.jobs.kube.cluster import PATIENCE_S, Cluster, eventually
from tests.jobs.kube.image import IMAGE, NAME
from tests.jobs.kube.pods import running, waiting_python
from tests.jobs.kube.test_kubernetes_job import ranks_of

GROUP = "kueue.x-k8s.io"


def _job(
    cluster: Cluster,
    namespace: str,
    folder: Path,
    *,
    workload: str = "pods",
    meshes: int = 2,
    image: ImageSpec = IMAGE,
) -> KubernetesJob:
    options = KubernetesOptions(workload=workload, queue="blue", kubeconfig=cluster.kubeconfig)
    job = KubernetesJob(
        namespace, name="test", timeout=PATIENCE_S, options=options, folder=folder / "job"
    )
    for number in range(meshes):
        job.add_mesh("workers" if not number else f"others-{number}", 1, image_spec=image)
    return job


@pytest.fixture
def queues(stand_in: Cluster) -> Iterator[Any]:
    """The queues of a cluster with Kueue, which the controller of the stand-in manages."""
    definitions: Any = client.ApiextensionsV1Api(stand_in.client)
    names = {"plural": "localqueues", "singular": "localqueue", "kind": "LocalQueue"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": schema}
    spec: Any = {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]}
    body = {"metadata": {"name": f"localqueues.{GROUP}"}, "spec": spec}
    definitions.create_custom_resource_definition(body)
    yield client.CustomObjectsApi(stand_in.client)
    definitions.delete_custom_resource_definition(f"localqueues.{GROUP}")


def test_the_meshes_of_a_job_start_together_once_their_queue_admits_them(
    stand_in: Cluster, namespace: str, tmp_path: Path, queues: Any
) -> None:
    place = (GROUP, "v1beta1", namespace, "localqueues")
    spec = {"clusterQueue": "all", "stopPolicy": "Hold"}
    body = {"apiVersion": f"{GROUP}/v1beta1", "kind": "LocalQueue", "metadata": {"name": "blue"}}
    queues.create_namespaced_custom_object(*place, {**body, "spec": spec})
    job = _job(stand_in, namespace, tmp_path).apply()

    def waits() -> bool:
        hosts = job.status().hosts
        return all("SchedulingGated" in host.reason for host in hosts)

    eventually(waits)
    assert {host.state for host in job.status().hosts} == {Phase.PENDING}
    queues.patch_namespaced_custom_object(*place, "blue", {"spec": {"stopPolicy": "None"}})
    assert ranks_of(job) == [0]
    assert job.status().is_up
    with pytest.raises(NotSupported, match="queue 'blue' admitted the job with its size"):
        job.resize(mesh="workers", hosts=2)
    job.kill()
    eventually(lambda: not stand_in.leftovers(namespace))


def test_a_group_that_is_killed_while_it_waits_leaves_nothing(
    stand_in: Cluster, namespace: str, tmp_path: Path, queues: Any
) -> None:
    image = ImageSpec(NAME, python=waiting_python(tmp_path))
    job = _job(stand_in, namespace, tmp_path, image=image).apply()
    assert running(stand_in, namespace) == 0
    job.kill()
    eventually(lambda: not stand_in.leftovers(namespace))


@pytest.mark.parametrize("workload", ["job", "statefulset", "jobset"])
def test_a_workload_with_a_single_mesh_has_the_queue_label(
    cluster: Cluster, namespace: str, tmp_path: Path, workload: str
) -> None:
    plan = _job(cluster, namespace, tmp_path, workload=workload, meshes=1).plan()
    *_, made = yaml.safe_load_all(plan)
    assert made["metadata"]["labels"][f"{GROUP}/queue-name"] == "blue"


@pytest.mark.parametrize(
    ("workload", "meshes", "message"),
    [
        ("job", 2, r"would admit each job of the 2 meshes separately: use workload='pods'"),
        ("statefulset", 2, r"each statefulset of the 2 meshes separately"),
        ("pods", 9, r"admits a group of at most 8 meshes, and the job has 9"),
    ],
)
def test_a_job_that_its_queue_would_not_admit_as_a_whole_is_refused(
    cluster: Cluster, namespace: str, tmp_path: Path, workload: str, meshes: int, message: str
) -> None:
    job = _job(cluster, namespace, tmp_path, workload=workload, meshes=meshes)
    with pytest.raises(ConfigError, match=message):
        job.apply()
    assert not cluster.leftovers(namespace)


def test_an_invalid_queue_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="'Blue Queue' is not the name of a LocalQueue"):
        KubernetesOptions(queue="Blue Queue")
