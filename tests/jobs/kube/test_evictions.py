"""Evicted or deleted pods: the program is notified once and stops its actors in time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from kubernetes.client import ApiException

import mesh_core
from mesh_core import Actor, ConfigError, MeshFailure, add_standby_workers, endpoint
from mesh_jobs import HostDraining, ImageSpec, JobError, KubernetesJob, KubernetesOptions
from tests.jobs.kube.cluster import PATIENCE_S, Cluster, eventually
from tests.jobs.kube.image import IMAGE, NAME, PYTHON
from tests.jobs.kube.kubectl import KubectlError, kubectl
from tests.jobs.kube.pods import WAIT, container, pod

Jobs = Callable[..., KubernetesJob]


class Saver(Actor):
    """Needs some time to finish its work, and records that it has finished."""

    def __init__(self, folder: str) -> None:
        self._saved = Path(folder) / f"saved-{os.environ['MESH_RANK']}"

    @endpoint
    def work(self) -> int:
        return 1

    def __cleanup__(self, error: Exception | None) -> None:
        self._saved.write_text("saved" if error is None else repr(error))


class Counter(Actor):
    """Counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def add(self) -> tuple[int, int]:
        """Return how many calls it has received, and its process."""
        self.count += 1
        return self.count, os.getpid()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[MeshFailure]:
    """The failures that were not handled."""
    found: list[MeshFailure] = []
    monkeypatch.setattr(mesh_core, "unhandled_fault_hook", found.append)
    return found


@pytest.fixture
def jobs(
    cluster: Cluster, namespace: str, tmp_path: Path, faults: list[MeshFailure]
) -> Iterator[Jobs]:
    """Create jobs that are released after the test."""
    made: list[KubernetesJob] = []

    def make(
        hosts: int = 1,
        *,
        image: ImageSpec = IMAGE,
        cpus: int | None = None,
        kubeconfig: Path = cluster.kubeconfig,
        **options: Any,
    ) -> KubernetesJob:
        job = KubernetesJob(
            namespace,
            name="test",
            timeout=PATIENCE_S,
            options=KubernetesOptions(kubeconfig=kubeconfig, **options),
            folder=tmp_path / "job",
        )
        made.append(job.add_mesh("workers", hosts, image_spec=image, cpus=cpus))
        return job

    yield make
    for job in made:
        job.kill()


class Program:
    """A program that saves its state and stops its processes when their host leaves."""

    def __init__(self, job: KubernetesJob, folder: Path) -> None:
        self._procs = job.state().workers.spawn_procs({"procs": 1})
        self._savers = self._procs.spawn("savers", Saver, str(folder))
        self._savers.work.call().get(timeout=PATIENCE_S)
        self.is_saved = threading.Event()
        self.notices: list[HostDraining] = []

    def save(self, host: HostDraining) -> None:
        self.notices.append(host)
        # The host works until the program stops it.
        assert set(self._savers.work.call().get(timeout=PATIENCE_S).values()) == {1}
        self._procs.stop().get(timeout=PATIENCE_S)
        self.is_saved.set()


def evict(cluster: Cluster, namespace: str, name: str) -> None:
    body = {"metadata": {"name": name, "namespace": namespace}}
    cluster.core.create_namespaced_pod_eviction(name, namespace, body)


def delete(cluster: Cluster, namespace: str, name: str) -> None:
    cluster.core.delete_namespaced_pod(name, namespace)


def shut_down(cluster: Cluster, namespace: str, name: str) -> None:
    """Shut the node down: the kubelet stops the pod, and reports to the API server afterwards."""
    if not cluster.is_stand_in:
        pytest.skip("only the stand-in can be told to shut a node down")
    cluster.break_pod(namespace, name, "shutdown")


def preempt(cluster: Cluster, namespace: str, name: str) -> None:
    """Create a pod of a higher priority that fits on the node only without the other pod."""
    if not cluster.is_stand_in:
        pytest.skip("the size of other clusters is unknown")
    priorities: Any = client.SchedulingV1Api(cluster.client)
    priorities.create_priority_class({"metadata": {"name": f"urgent-{namespace}"}, "value": 1000})
    where = {"kubernetes.io/hostname": cluster.pod(namespace, name).spec.node_name}
    more: Any = {"nodeSelector": where, "priorityClassName": f"urgent-{namespace}"}
    urgent = pod("urgent", WAIT, of_pod=more)
    urgent["spec"]["containers"] = [container(WAIT, resources={"requests": {"cpu": "40"}})]
    cluster.core.create_namespaced_pod(namespace, urgent)


def node_of(cluster: Cluster, namespace: str, rank: int = 0) -> str:
    """Return the node of a host."""
    label = f"batch.kubernetes.io/job-completion-index={rank}"
    (found,) = cluster.pods(namespace, label_selector=label)
    return str(found.spec.node_name)


@contextmanager
def cordoned(cluster: Cluster, home: Path, node: str) -> Iterator[None]:
    """Cordon a node, and make it available to the following tests afterwards."""
    kubectl(cluster, home, "cordon", node)
    try:
        yield
    finally:
        kubectl(cluster, home, "uncordon", node)


def drain(cluster: Cluster, home: Path, node: str, *options: str) -> str:
    return kubectl(cluster, home, "drain", node, "--ignore-daemonsets", *options)


def running(cluster: Cluster, namespace: str) -> set[str]:
    """Return the pods whose worker has not exited."""
    return {
        one.metadata.uid
        for one in cluster.pods(namespace)
        if one.status.phase not in ("Succeeded", "Failed")
    }


@pytest.mark.parametrize(
    ("end", "reason"),
    [(evict, "drain"), (delete, "end"), (preempt, "preempt"), (shut_down, "end")],
)
def test_on_leaving_is_called_once_before_the_pod_ends(
    cluster: Cluster,
    namespace: str,
    jobs: Jobs,
    tmp_path: Path,
    faults: list[MeshFailure],
    end: Callable[[Cluster, str, str], None],
    reason: str,
) -> None:
    job = jobs(cpus=40)
    program = Program(job, tmp_path)
    (worker,) = cluster.pods(namespace)
    with job.on_leaving(program.save):
        end(cluster, namespace, worker.metadata.name)
        assert program.is_saved.wait(PATIENCE_S)
        eventually(lambda: worker.metadata.uid not in running(cluster, namespace))
    (notice,) = program.notices
    assert (notice.mesh, notice.rank, notice.reason) == ("workers", 0, reason)
    assert notice.seconds is not None
    assert 0 < notice.seconds <= worker.spec.termination_grace_period_seconds
    assert (tmp_path / "saved-0").read_text() == "saved"
    assert faults == []


def test_actors_move_from_a_pod_that_is_evicted(
    cluster: Cluster, namespace: str, jobs: Jobs, faults: list[MeshFailure]
) -> None:
    job = jobs().add_mesh("spare", 1, image_spec=IMAGE)
    state = job.state()
    counter = state.workers.spawn_procs().spawn("counter", Counter)
    count, before = counter.add.call_one().get(timeout=PATIENCE_S)
    assert count == 1
    add_standby_workers(state.workers, state.spare)
    has_moved = threading.Event()

    def move(host: HostDraining) -> None:
        assert host.mesh == "workers"
        state.workers.drain(host.rank)
        has_moved.set()

    (worker,) = cluster.pods(namespace, label_selector="mesh-jobs/mesh=workers")
    with job.on_leaving(move):
        evict(cluster, namespace, worker.metadata.name)
        assert has_moved.wait(PATIENCE_S)
        count, after = counter.add.call_one().get(timeout=PATIENCE_S)
        assert count == 2
        assert after != before
        # The old pod ends, because nothing runs in it any more.
        eventually(lambda: worker.metadata.uid not in running(cluster, namespace))
    assert faults == []


def test_a_drain_of_a_node_waits_until_the_program_has_saved_its_state(
    stand_in: Cluster, namespace: str, jobs: Jobs, tmp_path: Path, faults: list[MeshFailure]
) -> None:
    job = jobs(image=ImageSpec(NAME, python=PYTHON, shared_memory="0"))
    program = Program(job, tmp_path)
    (worker,) = stand_in.pods(namespace)
    node = worker.spec.node_name
    with job.on_leaving(program.save), cordoned(stand_in, tmp_path, node):
        assert f"pod/{worker.metadata.name} evicted" in drain(stand_in, tmp_path, node)
        assert program.is_saved.is_set()
        # The replacement is another worker, which is not leaving.
        eventually(lambda: job.status().is_up)
        assert job.leaving() == []
    ((rank, reason),) = [(one.rank, one.reason) for one in program.notices]
    assert (rank, reason) == (0, "drain")
    assert (tmp_path / "saved-0").read_text() == "saved"
    assert faults == []


def test_a_host_without_processes_is_reported_although_its_worker_exits_at_once(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    job = jobs()
    job.state()
    (worker,) = cluster.pods(namespace)
    notices: list[HostDraining] = []
    with job.on_leaving(notices.append):
        evict(cluster, namespace, worker.metadata.name)
        eventually(lambda: notices)
        eventually(lambda: job.status().is_up)
    assert [(one.rank, one.reason) for one in notices] == [(0, "drain")]


def test_a_worker_reports_its_eviction_while_the_api_server_is_unreachable(
    stand_in: Cluster, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    proxy, kubeconfig = stand_in.breakable_proxy()
    job = jobs(kubeconfig=kubeconfig)
    program = Program(job, tmp_path)
    (worker,) = stand_in.pods(namespace)
    with job.on_leaving(program.save):
        with proxy.closed():
            evict(stand_in, namespace, worker.metadata.name)
            assert program.is_saved.wait(PATIENCE_S)
        # The watch has seen the eviction when it has seen the replacement.
        eventually(lambda: job.status().is_up)
    assert [one.rank for one in program.notices] == [0]
    assert (tmp_path / "saved-0").read_text() == "saved"


def test_hosts_that_the_program_releases_are_not_reported(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    job = jobs()
    job.state()
    notices: list[HostDraining] = []
    with job.on_leaving(notices.append):
        job.kill()
    assert notices == []


def test_a_cordoned_node_is_reported_before_its_pods_are_evicted(
    stand_in: Cluster, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    roles = yaml.safe_load_all(jobs(watch_nodes=True).role())
    rules = [rule for role in roles for rule in role["rules"]]
    user = stand_in.user(namespace, rules, is_everywhere=True)
    job = jobs(watch_nodes=True, kubeconfig=user)
    program = Program(job, tmp_path)
    (worker,) = stand_in.pods(namespace)
    node = worker.spec.node_name
    with job.on_leaving(program.save):
        with cordoned(stand_in, tmp_path, node):
            assert program.is_saved.wait(PATIENCE_S)
            assert worker.metadata.uid in running(stand_in, namespace)
            # The pod has a volume for shared memory.
            with pytest.raises(KubectlError, match="use --delete-emptydir-data to override"):
                drain(stand_in, tmp_path, node)
            drain(stand_in, tmp_path, node, "--delete-emptydir-data")
        eventually(lambda: job.status().is_up)
    ((reason, seconds),) = [(one.reason, one.seconds) for one in program.notices]
    assert (reason, seconds) == ("drain", None)


def test_actors_keep_running_until_the_grace_period_is_nearly_over(
    cluster: Cluster, namespace: str, jobs: Jobs, tmp_path: Path, faults: list[Any]
) -> None:
    job = jobs(termination_grace_s=6)
    procs = job.state().workers.spawn_procs({"procs": 1})
    savers = procs.spawn("savers", Saver, str(tmp_path))
    savers.work.call().get(timeout=PATIENCE_S)
    (worker,) = cluster.pods(namespace)
    evict(cluster, namespace, worker.metadata.name)
    eventually(lambda: job.leaving() != [])
    assert savers.work.call_one().get(timeout=PATIENCE_S) == 1
    eventually(lambda: worker.metadata.uid not in running(cluster, namespace))
    # It was stopped in an orderly way and not killed.
    assert (tmp_path / "saved-0").exists()
    eventually(lambda: "its worker was shut down" in str(faults))


def test_a_disruption_budget_limits_evictions_and_is_deleted_with_the_job(
    cluster: Cluster, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    rules = yaml.safe_load(jobs(evictions_max=0).role())["rules"]
    job = jobs(2, evictions_max=0, kubeconfig=cluster.user(namespace, rules)).apply()
    eventually(lambda: job.status().is_up)
    first, second = cluster.pods(namespace)

    def is_evicted(name: str) -> bool:
        try:
            evict(cluster, namespace, name)
        except ApiException as error:
            if error.status != 429:
                raise
            return False
        return True

    (budget,) = cluster.policy.list_namespaced_pod_disruption_budget(namespace).items
    assert budget.spec.min_available == 2
    assert not is_evicted(first.metadata.name)
    # One pod more than the budget requires may be evicted.
    spec = {"spec": {"minAvailable": 1}}
    cluster.policy.patch_namespaced_pod_disruption_budget(budget.metadata.name, namespace, spec)
    eventually(lambda: is_evicted(first.metadata.name))
    assert not is_evicted(second.metadata.name)
    job.resize(mesh="workers", hosts=3)
    (budget,) = cluster.policy.list_namespaced_pod_disruption_budget(namespace).items
    assert budget.spec.min_available == 3
    job.kill()
    eventually(lambda: not cluster.leftovers(namespace))


def test_a_job_that_watches_nodes_needs_a_cluster_role(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    role, nodes, binding, nodes_binding = yaml.safe_load_all(
        jobs(watch_nodes=True).role("user:ada")
    )
    assert [one["kind"] for one in (role, nodes)] == ["Role", "ClusterRole"]
    assert binding["subjects"] == nodes_binding["subjects"]
    job = jobs(watch_nodes=True, kubeconfig=cluster.user(namespace, role["rules"]))
    with pytest.raises(JobError, match=r"no permission to list nodes in the cluster: .*role\(\)"):
        job.apply()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"termination_grace_s": 4}, "termination_grace_s is 4: give .* at least 5"),
        ({"evictions_max": -1}, "evictions_max is -1: give a number of pods"),
    ],
)
def test_an_invalid_number_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KubernetesOptions(**options)


def test_eviction_options_are_refused_with_a_mesh_job(tmp_path: Path) -> None:
    options = KubernetesOptions(evictions_max=1)
    with pytest.raises(ConfigError, match="leave out termination_grace_s, evictions_max"):
        KubernetesJob("research", mesh_job="train", options=options, folder=tmp_path)
