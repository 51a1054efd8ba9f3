"""Jobs on Kubernetes behave like all jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mesh_jobs import Job, KubernetesJob, KubernetesOptions
from mesh_jobs.testing import JobConformance, JobFactory
from tests.jobs.kube.breakable_proxy import BreakableProxy
from tests.jobs.kube.cluster import Cluster
from tests.jobs.kube.image import IMAGE
from tests.jobs.slow_variant import with_slow


class Kubernetes(JobConformance):
    workload: str
    up_s = 30.0

    @pytest.fixture
    def factory(self, cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[JobFactory]:
        proxy, kubeconfig = cluster.breakable_proxy()
        self.cluster, self.namespace, self.folder = cluster, namespace, tmp_path
        self.proxy: BreakableProxy = proxy
        self.kubeconfig = kubeconfig

        def make(meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
            job = self.job(name, ttl_s)
            for mesh, hosts in meshes.items():
                job.add_mesh(mesh, hosts, image_spec=IMAGE)
            return job

        yield make
        proxy.end()

    def job(self, name: str, ttl_s: float = 600.0) -> KubernetesJob:
        return KubernetesJob(
            self.namespace,
            name=name,
            options=KubernetesOptions(workload=self.workload, kubeconfig=self.kubeconfig),
            ttl_s=ttl_s,
            folder=self.folder / name,
        )

    def workers(self, allocation_id: str) -> int:
        pods = self.cluster.pods(
            self.namespace, label_selector=f"mesh-jobs/allocation={allocation_id}"
        )
        return sum(pod.status.phase in ("Pending", "Running") for pod in pods)

    def lose_host(self, job: Job, mesh: str, rank: int) -> None:
        address = job.status().of(mesh)[rank].address or ""
        (pod,) = (
            one
            for one in self.cluster.pods(self.namespace)
            if one.status.pod_ip and f"//{one.status.pod_ip}:" in address
        )
        self.cluster.core.delete_namespaced_pod(
            pod.metadata.name, self.namespace, grace_period_seconds=0
        )

    def block_scheduler(self) -> AbstractContextManager[None]:
        return self.proxy.closed()

    def exhaust(self, factory: JobFactory) -> Job:
        return self.job("greedy").add_mesh("ones", 1, image_spec=IMAGE, gpus=1000)


#: Tests that depend on the kind of pods. `test_kubernetes_job.py` tests the loss of pods.
OWN = {
    "test_actors_run_on_every_host_of_every_mesh",
    "test_kill_leaves_nothing_behind_and_is_idempotent",
    "test_the_next_program_completes_an_interrupted_apply",
    "test_a_pending_job_reports_the_reason_and_can_be_killed",
    "test_a_mesh_grows_and_shrinks",
}


def only(names: set[str]) -> Callable[[type[Kubernetes]], type[Kubernetes]]:
    """Keep only these tests of a class."""

    def chosen(kind: type[Kubernetes]) -> type[Kubernetes]:
        for name in dir(kind):
            if name.startswith("test_") and name not in names:
                setattr(kind, name, None)
        return kind

    return chosen


@with_slow(
    "test_the_next_apply_completes_an_interrupted_kill",
    "test_a_second_state_call_returns_the_same_mesh",
    "test_the_next_program_uses_the_hosts_of_a_killed_program",
)
class TestJobs(Kubernetes):
    workload = "job"


@with_slow("test_the_next_program_completes_an_interrupted_apply")
@only(OWN)
class TestStatefulSets(Kubernetes):
    """Pods of stateful sets do not end on their own: they are always restarted."""

    workload = "statefulset"


@with_slow("test_the_next_program_completes_an_interrupted_apply")
@only(OWN)
class TestPods(Kubernetes):
    workload = "pods"
