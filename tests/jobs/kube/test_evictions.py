"""Evicted or deleted pods: the program is notified and stops its actors in time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mesh_core
from mesh_core import Actor, MeshFailure, endpoint
from mesh_jobs import HostDraining, ImageSpec, KubernetesJob, KubernetesOptions
from tests.jobs.kube.cluster import PATIENCE_S, Cluster, eventually

IMAGE = ImageSpec("mesh-test", python=sys.executable)


class Saver(Actor):
    """Needs some time to finish its work, and records that it has finished."""

    def __init__(self, folder: str) -> None:
        self._saved = Path(folder) / "saved"

    @endpoint
    def work(self) -> int:
        return 1

    def __cleanup__(self, error: Exception | None) -> None:
        self._saved.write_text("saved" if error is None else repr(error))


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[MeshFailure]:
    """The failures that were not handled."""
    found: list[MeshFailure] = []
    monkeypatch.setattr(mesh_core, "unhandled_fault_hook", found.append)
    return found


@pytest.fixture
def job(
    cluster: Cluster, namespace: str, tmp_path: Path, faults: list[MeshFailure]
) -> Iterator[KubernetesJob]:
    job = KubernetesJob(
        namespace,
        name="test",
        timeout=PATIENCE_S,
        options=KubernetesOptions(kubeconfig=cluster.kubeconfig),
        folder=tmp_path / "job",
    )
    job.add_mesh("workers", 1, image_spec=IMAGE)
    yield job
    job.kill()


def evict(cluster: Cluster, namespace: str, name: str) -> None:
    body = {"metadata": {"name": name, "namespace": namespace}}
    cluster.core.create_namespaced_pod_eviction(name, namespace, body)


def delete(cluster: Cluster, namespace: str, name: str) -> None:
    cluster.core.delete_namespaced_pod(name, namespace)


def shut_down(cluster: Cluster, namespace: str, name: str) -> None:
    """Shut the node down: the kubelet stops the pod, and the API server learns of it afterwards."""
    if not cluster.is_stand_in:
        pytest.skip("only the stand-in can be told to shut a node down")
    cluster.break_pod(namespace, name, "shutdown")


@pytest.mark.parametrize(("end", "reason"), [(evict, "drain"), (delete, "end"), (shut_down, "end")])
def test_a_program_that_is_told_stops_its_actors_before_the_pod_ends(
    cluster: Cluster,
    namespace: str,
    job: KubernetesJob,
    tmp_path: Path,
    faults: list[MeshFailure],
    end: Callable[[Cluster, str, str], None],
    reason: str,
) -> None:
    procs = job.state().workers.spawn_procs({"procs": 1})
    savers = procs.spawn("savers", Saver, str(tmp_path))
    savers.work.call().get(timeout=PATIENCE_S)
    (pod,) = cluster.pods(namespace)
    told: list[HostDraining] = []
    is_saved = threading.Event()

    def save(host: HostDraining) -> None:
        told.append(host)
        assert savers.work.call_one().get(timeout=PATIENCE_S) == 1
        procs.stop().get(timeout=PATIENCE_S)
        is_saved.set()

    with job.on_leaving(save):
        end(cluster, namespace, pod.metadata.name)
        assert is_saved.wait(PATIENCE_S)
        eventually(lambda: pod.metadata.uid not in running(cluster, namespace))
    ((mesh, rank, why, seconds),) = {(h.mesh, h.rank, h.reason, h.seconds) for h in told}
    assert (mesh, rank, why) == ("workers", 0, reason)
    assert seconds is not None
    assert 0 < seconds <= pod.spec.termination_grace_period_seconds
    assert (tmp_path / "saved").read_text() == "saved"
    assert faults == []


def test_actors_that_nobody_stops_go_on_until_the_grace_period_is_nearly_over(
    cluster: Cluster, namespace: str, job: KubernetesJob, tmp_path: Path, faults: list[Any]
) -> None:
    procs = job.state().workers.spawn_procs({"procs": 1})
    savers = procs.spawn("savers", Saver, str(tmp_path))
    savers.work.call().get(timeout=PATIENCE_S)
    (pod,) = cluster.pods(namespace)
    evict(cluster, namespace, pod.metadata.name)
    eventually(lambda: job.leaving() != [])
    assert savers.work.call_one().get(timeout=PATIENCE_S) == 1
    eventually(lambda: pod.metadata.uid not in running(cluster, namespace))
    # It was stopped in an orderly way and not killed.
    assert (tmp_path / "saved").exists()
    eventually(lambda: "its worker was shut down" in str(faults))


def running(cluster: Cluster, namespace: str) -> set[str]:
    """Return the pods whose worker has not exited."""
    return {
        one.metadata.uid
        for one in cluster.pods(namespace)
        if one.status.phase not in ("Succeeded", "Failed")
    }
