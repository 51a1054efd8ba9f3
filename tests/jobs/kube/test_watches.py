"""The observed state is correct, whatever happens to the watch and to the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from mesh_jobs import (
    JobError,
    JobPending,
    KubernetesJob,
    KubernetesOptions,
    Phase,
    SchedulerUnreachable,
)
from mesh_jobs.spi import Backend, Follower
from tests.jobs.kube.cluster import PATIENCE_S, Cluster, eventually
from tests.jobs.kube.image import IMAGE
from tests.jobs.kube.pods import WAIT, pod

#: Duration of the server outage; longer than any timeout of Mesh.
OUTAGE_S = 30.0

ALLOCATION = {"mesh-jobs/allocation": "watched"}

Follow = Callable[..., Follower]


@pytest.fixture
def follow(cluster: Cluster, namespace: str) -> Iterator[Follow]:
    """Start to watch a job with two pods that do not exist yet."""
    (found,) = entry_points(group="mesh_jobs.backends", name="kubernetes")
    mesh = {"name": "ones", "hosts": 2, "port": 26600, "object": "ones"}
    allocation = {
        "id": "watched",
        "namespace": namespace,
        "workload": "pods",
        "meshes": [mesh],
    }
    with ExitStack() as stack:

        def begin(kubeconfig: Path = cluster.kubeconfig) -> Follower:
            options = {"namespace": namespace, "kubeconfig": str(kubeconfig), "workload": "pods"}
            backend: Backend = found.load()(options)
            return stack.enter_context(backend.follow(allocation))

        yield begin


def _make(cluster: Cluster, namespace: str, rank: int) -> None:
    """Create a pod that is never scheduled."""
    labels = {**ALLOCATION, "mesh-jobs/mesh": "ones", "mesh-jobs/rank": str(rank)}
    gates = {"schedulingGates": [{"name": "test/never"}]}
    body = pod(f"ones-{rank}", WAIT, meta={"labels": labels}, of_pod=gates)
    cluster.core.create_namespaced_pod(namespace, body)


def _ranks(follower: Follower) -> list[int] | None:
    """Return the ranks of the known pods, or None while the server is unreachable."""
    try:
        return [one.rank for one in follower.report().hosts if one.state is Phase.PENDING]
    except SchedulerUnreachable:
        return None


def test_created_changed_and_deleted_pods_are_tracked(
    cluster: Cluster, namespace: str, follow: Follow
) -> None:
    _make(cluster, namespace, 0)
    follower = follow()
    assert _ranks(follower) == [0]
    _make(cluster, namespace, 1)
    eventually(lambda: _ranks(follower) == [0, 1])
    other = {"metadata": {"labels": {"mesh-jobs/allocation": "other"}}}
    cluster.core.patch_namespaced_pod("ones-0", namespace, other)
    eventually(lambda: _ranks(follower) == [1])
    cluster.core.delete_namespaced_pod("ones-1", namespace)
    eventually(lambda: _ranks(follower) == [])


@pytest.mark.parametrize("how", ["410", "500", "504", "cut", "expire"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_watch_continues_after_any_failure(
    stand_in: Cluster, namespace: str, follow: Follow, how: str, after: int
) -> None:
    with stand_in.failing(how, verb="watch", plural="pods", after=after, times=2):
        _make(stand_in, namespace, 0)
        follower = follow()
        eventually(lambda: _ranks(follower) == [0])
        _make(stand_in, namespace, 1)
        eventually(lambda: _ranks(follower) == [0, 1])
        stand_in.core.delete_namespaced_pod("ones-0", namespace)
        eventually(lambda: _ranks(follower) == [1])


def test_missed_changes_are_listed_when_the_history_has_expired(
    stand_in: Cluster, namespace: str, follow: Follow
) -> None:
    _make(stand_in, namespace, 0)
    follower = follow()
    assert _ranks(follower) == [0]
    with stand_in.failing("cut", verb="watch", plural="pods"):
        stand_in.core.delete_namespaced_pod("ones-0", namespace)
        _make(stand_in, namespace, 1)
        stand_in.forget_history()
    eventually(lambda: _ranks(follower) == [1])


def test_changes_in_other_namespaces_are_ignored(
    cluster: Cluster, namespace: str, follow: Follow
) -> None:
    follower = follow()
    assert _ranks(follower) == []
    other = cluster.make_namespace()
    _make(cluster, other, 0)
    cluster.delete_namespace(other)
    _make(cluster, namespace, 1)
    eventually(lambda: _ranks(follower) == [1])


def test_a_missing_permission_to_watch_is_named(
    cluster: Cluster, namespace: str, follow: Follow
) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    follower = follow(cluster.user(namespace, rules))

    def refused() -> bool:
        try:
            follower.report()
        except JobError as error:
            return "no permission to watch pods" in str(error)
        return False

    eventually(refused)


@pytest.mark.parametrize("how", ["410", "cut"])
def test_waiting_for_a_job_survives_failed_watches(
    stand_in: Cluster, namespace: str, tmp_path: Path, how: str
) -> None:
    options = KubernetesOptions(kubeconfig=stand_in.kubeconfig)
    job = KubernetesJob(namespace, options=options, folder=tmp_path)
    job.add_mesh("workers", 1, image_spec=IMAGE).apply()
    with stand_in.failing(how, verb="watch", after=1, times=4):
        assert len(job.state(PATIENCE_S).workers) == 1
        job.detach()
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(job.wait, PATIENCE_S)
            (made,) = stand_in.batch.list_namespaced_job(namespace).items
            stand_in.batch.delete_namespaced_job(
                made.metadata.name, namespace, propagation_policy="Background"
            )
            assert ended.result(PATIENCE_S).state is Phase.ENDED
    job.kill()


def _counted(cluster: Cluster, namespace: str) -> list[tuple[str, str]]:
    """Return all objects of jobs, with uids that distinguish replacements."""
    lists = (
        cluster.core.list_namespaced_pod,
        cluster.core.list_namespaced_secret,
        cluster.core.list_namespaced_service,
        cluster.batch.list_namespaced_job,
    )
    found = [one.metadata for each in lists for one in each(namespace).items]
    return sorted((one.name, one.uid) for one in found)


@pytest.mark.slow
def test_an_api_server_outage_of_half_a_minute_changes_nothing(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """The server is silent for one program and down for the other."""
    proxies = {name: cluster.breakable_proxy() for name in ("silent", "down")}

    def job(proxy: str, name: str) -> KubernetesJob:
        options = KubernetesOptions(kubeconfig=proxies[proxy][1])
        made = KubernetesJob(namespace, options=options, folder=tmp_path / name)
        return made.add_mesh("workers", 1, image_spec=IMAGE)

    jobs = [job(proxy, proxy) for proxy in proxies]
    for one in jobs:
        one.state(PATIENCE_S)
    # The other pod stays pending, and a thread waits for it throughout the outage.
    waits = job("silent", "waits").add_mesh("greedy", 1, image_spec=IMAGE, gpus=1000).apply()
    eventually(lambda: waits.status().up == 1)
    before = _counted(cluster, namespace)
    with ThreadPoolExecutor(5) as pool:
        keeps_waiting = pool.submit(waits.state, OUTAGE_S + 4)
        watched = [pool.submit(one.wait, OUTAGE_S - 8) for one in jobs]
        with proxies["silent"][0].silent(), proxies["down"][0].closed():
            over = threading.Event()
            threading.Timer(OUTAGE_S, over.set).start()
            killed = [pool.submit(one.kill) for one in jobs]
            for asked in (*killed, *watched):
                assert isinstance(asked.exception(), SchedulerUnreachable), asked.exception()
            over.wait()
        # The reason for the wait stays known throughout the outage, and is reported again.
        assert isinstance(keeps_waiting.exception(), JobPending)
        assert "Insufficient nvidia.com/gpu" in str(keeps_waiting.exception())
    assert _counted(cluster, namespace) == before
    for one in (*jobs, waits):
        one.kill()
    eventually(lambda: not cluster.leftovers(namespace))
    for proxy, _ in proxies.values():
        proxy.end()
