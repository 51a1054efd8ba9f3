"""Jobs on Kubernetes behave as all jobs do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mesh_jobs import Job, KubernetesJob
from mesh_jobs.testing import JobConformance, JobFactory
from tests.jobs.kube.cluster import Cluster
from tests.jobs.kube.cut import Cut
from tests.jobs.kube.test_kubernetes_job import IMAGE


class TestKubernetesJob(JobConformance):
    workload = "job"
    up_s = 30.0

    @pytest.fixture
    def factory(self, cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[JobFactory]:
        way, kubeconfig = cluster.cut()
        self.cluster, self.namespace, self.folder = cluster, namespace, tmp_path
        self.way: Cut = way
        self.kubeconfig = kubeconfig

        def make(meshes: dict[str, int], name: str, *, ttl_s: float = 600.0) -> Job:
            job = self.job(name, ttl_s)
            for mesh, hosts in meshes.items():
                job.add_mesh(mesh, hosts, image_spec=IMAGE)
            return job

        yield make
        way.end()

    def job(self, name: str, ttl_s: float = 600.0) -> KubernetesJob:
        return KubernetesJob(
            self.namespace,
            kubeconfig=self.kubeconfig,
            workload=self.workload,
            name=name,
            ttl_s=ttl_s,
            folder=self.folder / name,
        )

    def workers(self, order_id: str) -> int:
        pods = self.cluster.pods(self.namespace, label_selector=f"mesh-jobs/order={order_id}")
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
        return self.way.closed()

    def exhaust(self, factory: JobFactory) -> Job:
        return self.job("greedy").add_mesh("ones", 1, image_spec=IMAGE, gpus=1000)
