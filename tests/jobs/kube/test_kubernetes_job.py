"""Pods as hosts of a job: found, used, lost, replaced and released."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mesh_core import Actor, ConfigError, endpoint
from mesh_jobs import (
    ImageSpec,
    JobEnded,
    JobError,
    JobPending,
    KubernetesJob,
    KubernetesOptions,
    Phase,
    PodOptions,
)
from tests.jobs.kube.cluster import PATIENCE_S, Cluster, eventually
from tests.jobs.kube.image import IMAGE, MISSING, NAME, PYTHON
from tests.jobs.kube.pods import running, waiting_python

Jobs = Callable[..., KubernetesJob]


class Where(Actor):
    @endpoint
    def rank(self) -> int:
        return int(os.environ["MESH_RANK"])

    @endpoint
    def secret(self) -> str | None:
        return os.environ.get("MESH_WORKER_SECRET")


@pytest.fixture
def jobs(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Jobs]:
    """Create jobs that are released after the test."""
    made: list[KubernetesJob] = []

    def make(
        hosts: int = 1,
        mesh: Any = None,
        workload: str = "job",
        kubeconfig: Path = cluster.kubeconfig,
        ttl_s: float = 3600.0,
    ) -> KubernetesJob:
        job = KubernetesJob(
            namespace,
            name="test",
            timeout=PATIENCE_S,
            options=KubernetesOptions(workload=workload, kubeconfig=kubeconfig),
            ttl_s=ttl_s,
            folder=tmp_path,
        )
        job.add_mesh("workers", hosts, **{"image_spec": IMAGE, **(mesh or {})})
        made.append(job)
        return job

    yield make
    for job in made:
        job.kill()


def ranks_of(job: KubernetesJob) -> list[int]:
    procs = job.state().workers.spawn_procs({"procs": 1})
    actors = procs.spawn("where", Where)
    found = list(actors.rank.call().get(timeout=PATIENCE_S).values())
    assert set(actors.secret.call().get(timeout=PATIENCE_S).values()) == {None}
    procs.stop().get(timeout=PATIENCE_S)
    return found


@pytest.mark.parametrize(
    "workload",
    [
        "job",
        # Actors run on these workloads in `test_conformance.py`, too.
        pytest.param("statefulset", marks=pytest.mark.slow),
        pytest.param("pods", marks=pytest.mark.slow),
    ],
)
def test_pods_are_hosts_until_the_job_is_killed(
    cluster: Cluster, namespace: str, jobs: Jobs, workload: str
) -> None:
    job = jobs(2, workload=workload)
    assert ranks_of(job) == [0, 1]
    assert "mesh worker serves" in job.logs("workers", 1)
    job.kill()
    eventually(lambda: not cluster.leftovers(namespace))


@pytest.mark.parametrize("workload", ["job", "statefulset", "pods"])
def test_hosts_are_deleted_with_their_namespace(
    cluster: Cluster, namespace: str, jobs: Jobs, workload: str, local_files: Path
) -> None:
    image = ImageSpec(NAME, python=waiting_python(local_files))
    jobs(2, workload=workload, mesh={"image_spec": image}).apply()
    eventually(lambda: running(cluster, namespace) == 2)
    cluster.delete_namespace(namespace)
    assert not cluster.leftovers(namespace)


def test_processes_in_pods_are_listed_while_the_program_runs(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs(2)
    procs = job.state().workers.spawn_procs({"procs": 1})
    procs.initialized.get(timeout=PATIENCE_S)
    command = [sys.executable, "-c", "from mesh_jobs._cli.main import main; main()"]
    told = subprocess.run(
        [*command, "ps", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    hosts = json.loads(told.stdout)
    assert [(one["error"], one["rank"]) for one in hosts] == [(None, 0), (None, 1)]
    kinds = [[process["kind"] for process in one["processes"]] for one in hosts]
    assert [(one.count("worker"), one.count("proc")) for one in kinds] == [(1, 1), (1, 1)]
    procs.stop().get(timeout=PATIENCE_S)


def test_a_worker_does_not_log_probes(cluster: Cluster, jobs: Jobs) -> None:
    job = jobs()
    job.state()
    told = ("mesh worker serves", "{")
    assert all(line.startswith(told) for line in job.logs("workers", 0).splitlines())


def test_deleting_the_job_object_deletes_everything(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    job = jobs(2).apply()
    eventually(lambda: job.status().is_up)
    (made,) = cluster.batch.list_namespaced_job(namespace).items
    cluster.batch.delete_namespaced_job(
        made.metadata.name, namespace, propagation_policy="Background"
    )
    eventually(lambda: not cluster.leftovers(namespace))
    with pytest.raises(JobEnded, match="was deleted"):
        job.state()


def test_an_unused_job_leaves_nothing_behind(cluster: Cluster, namespace: str, jobs: Jobs) -> None:
    job = jobs(2, ttl_s=2).apply()
    eventually(lambda: not cluster.leftovers(namespace))
    with pytest.raises(JobEnded):
        job.state()


def test_a_retried_request_is_submitted_once(
    cluster: Cluster, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    job = jobs(2).apply()
    before = sorted(cluster.leftovers(namespace))
    path = Path(job.folder, "job.json")
    # Simulates a program that died before it could store the allocation.
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"allocation": None}))
    jobs(2).apply()
    made = [one for one in sorted(cluster.leftovers(namespace)) if not one.startswith("pod/")]
    assert made == [one for one in before if not one.startswith("pod/")]


@pytest.mark.parametrize("workload", ["job", "statefulset"])
def test_a_pod_that_is_lost_is_replaced_in_the_mesh(
    cluster: Cluster, namespace: str, jobs: Jobs, workload: str
) -> None:
    job = jobs(2, workload=workload)
    assert ranks_of(job) == [0, 1]
    before = {host.rank: host for host in job.status().hosts}
    lost = next(
        one for one in cluster.pods(namespace) if one.status.pod_ip in str(before[1].address)
    )
    cluster.core.delete_namespaced_pod(lost.metadata.name, namespace)
    eventually(lambda: not job.status().is_up)
    eventually(lambda: job.status().is_up)
    after = {host.rank: host for host in job.status().hosts}
    assert after[0] == before[0]
    assert after[1].epoch > before[1].epoch
    assert after[1].address != before[1].address
    assert ranks_of(job) == [0, 1]


def test_a_worker_restarted_at_the_same_address_is_a_new_worker(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    job = jobs(workload="statefulset")
    assert ranks_of(job) == [0]
    (before,) = job.status().hosts
    (pod,) = cluster.pods(namespace)
    cluster.break_pod(namespace, pod.metadata.name, "oom")
    eventually(lambda: not job.status().is_up)
    cluster.break_pod(namespace, pod.metadata.name, None)
    eventually(lambda: job.status().is_up)
    (after,) = job.status().hosts
    assert after.address == before.address
    assert after.epoch > before.epoch
    assert ranks_of(job) == [0]


def test_a_deleted_pod_does_not_count_as_succeeded(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    job = jobs().apply()
    eventually(lambda: job.status().is_up)
    (pod,) = cluster.pods(namespace)
    cluster.core.delete_namespaced_pod(pod.metadata.name, namespace)
    eventually(lambda: not job.status().is_up)
    eventually(lambda: job.status().is_up)
    (made,) = cluster.batch.list_namespaced_job(namespace).items
    assert not made.status.succeeded


def test_an_unresponsive_node_is_reported_before_its_pod_is_replaced(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    job = jobs().apply()
    eventually(lambda: job.status().is_up)
    (pod,) = cluster.pods(namespace)
    node = pod.spec.node_name
    cluster.break_node(node, "dead")
    try:
        eventually(lambda: not job.status().is_up, patience_s=60)
        (host,) = job.status().hosts
        assert (host.state, host.reason) == (
            Phase.PENDING,
            f"pod {pod.metadata.name} runs on {node} but is not ready",
        )
    finally:
        # A pod on a lost node may exist for as long as the node is down.
        cluster.core.delete_namespaced_pod(pod.metadata.name, namespace, grace_period_seconds=0)
        cluster.break_node(node, None)


def test_the_reason_why_a_pod_was_killed_is_reported(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    """The cause is also reported as an event, among the other events of the job."""
    job = jobs(2, workload="pods")
    eventually(lambda: job.apply().status().is_up)
    for rank, fault in enumerate(("oom", "evict")):
        (pod,) = cluster.pods(namespace, label_selector=f"mesh-jobs/rank={rank}")
        cluster.break_pod(namespace, pod.metadata.name, fault)
    eventually(lambda: job.status().up == 0)
    with pytest.raises(JobEnded, match="OOMKilled, exit status 137"):
        job.state()
    told = {(event.kind, event.mesh, event.rank) for event in job.events()}
    assert {("OOMKilled", "workers", 0), ("Evicted", "workers", 1)} <= told


def test_an_unschedulable_pod_reports_the_reason(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    job = jobs(mesh={"gpus": 1000})
    with pytest.raises(JobPending, match=r"Unschedulable.*Insufficient nvidia.com/gpu"):
        job.state(timeout=2)
    events = {event.kind: event for event in job.events()}
    assert "Insufficient nvidia.com/gpu" in events["FailedScheduling"].text
    assert (events["FailedScheduling"].mesh, events["FailedScheduling"].rank) == ("workers", 0)
    job.kill()
    eventually(lambda: not cluster.leftovers(namespace))


def test_an_image_that_cannot_be_pulled_ends_the_wait(cluster: Cluster, jobs: Jobs) -> None:
    pods = PodOptions(annotations={"test/kubelet": "hang-pull"})
    job = jobs(mesh={"pods": pods, "image_spec": ImageSpec(MISSING, python=PYTHON)})
    with pytest.raises(JobEnded, match="ImagePullBackOff"):
        job.state()


@pytest.mark.parametrize("workload", ["job", "statefulset", "pods"])
def test_the_last_lines_of_a_worker_that_cannot_start_are_reported(
    cluster: Cluster, jobs: Jobs, workload: str
) -> None:
    wrong = ImageSpec(NAME, python=PYTHON, env={"PYTHONHOME": "nowhere"})
    job = jobs(workload=workload, mesh={"image_spec": wrong})
    with pytest.raises(JobEnded, match=r"(?s)exit status 1.*last lines of workers\[0\].*encodings"):
        job.state()


def test_the_permissions_of_the_role_are_sufficient(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    rules = yaml.safe_load(jobs().role())["rules"]
    job = jobs(kubeconfig=cluster.user(namespace, rules))
    assert ranks_of(job) == [0]
    job.logs("workers", 0)
    job.resize(mesh="workers", hosts=2)
    eventually(lambda: job.status().is_up)
    job.kill()


def test_the_role_is_bound_to_the_given_subject(jobs: Jobs) -> None:
    role, binding = yaml.safe_load_all(jobs().role("user:ada: the first"))
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == ["ada: the first"]
    with pytest.raises(ConfigError, match="use user:NAME, group:NAME or serviceaccount:NAME"):
        jobs().role("ada")


def test_a_missing_permission_is_named(cluster: Cluster, namespace: str, jobs: Jobs) -> None:
    rules = yaml.safe_load(jobs().role())["rules"]
    less = [one for one in rules if one["resources"] != ["jobs"]]
    job = jobs(kubeconfig=cluster.user(namespace, less))
    with pytest.raises(JobError, match=r"no permission to create jobs in namespace .*role\(\)"):
        job.apply()


@pytest.mark.parametrize("workload", ["job", "statefulset", "pods"])
def test_a_plan_shows_manifests_and_creates_nothing(
    cluster: Cluster, namespace: str, jobs: Jobs, workload: str
) -> None:
    job = jobs(2, workload=workload, mesh={"gpus": 1, "pods": PodOptions(labels={"team": "blue"})})
    kinds = [one["kind"] for one in yaml.safe_load_all(job.plan(check=True))]
    made = {"job": ["Job"], "statefulset": ["StatefulSet"], "pods": ["Pod", "Pod"]}[workload]
    assert kinds == ["Secret", "Service", *made]
    assert not cluster.leftovers(namespace)


def test_a_plan_that_the_server_refuses_reports_the_reason(
    cluster: Cluster, namespace: str, jobs: Jobs
) -> None:
    privileged: Any = {"spec": {"containers": [{"name": "worker", "image": "Not an image?"}]}}
    privileged["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": "1"}}
    job = jobs(mesh={"image_spec": None, "pods": PodOptions(pod_template=privileged)})
    with pytest.raises(JobError, match=r"must equal limit|Limit must be set"):
        job.plan(check=True)


def test_a_template_adds_to_the_pod(cluster: Cluster, jobs: Jobs) -> None:
    worker = {"name": "worker", "env": [{"name": "COLOR", "value": "red"}]}
    template = {
        "metadata": {"labels": {"team": "blue"}},
        "spec": {"containers": [worker, {"name": "aside", "image": "other"}], "priority": 7},
    }
    pods = PodOptions(
        pod_template=template,
        node_selector={"zone": "a"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
    )
    job = jobs(mesh={"cpus": 4, "pods": pods})
    *_, made = yaml.safe_load_all(job.plan())
    pod = made["spec"]["template"]
    assert pod["metadata"]["labels"]["team"] == "blue"
    assert pod["spec"]["priority"] == 7
    assert pod["spec"]["nodeSelector"] == {"zone": "a"}
    assert pod["spec"]["tolerations"][0]["key"] == "gpu"
    first, second = pod["spec"]["containers"]
    assert second["name"] == "aside"
    assert {"name": "COLOR", "value": "red"} in first["env"]
    assert first["resources"]["limits"] == first["resources"]["requests"] == {"cpu": "4"}


def test_invalid_options_are_refused_at_construction(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'No Namespace' is not a namespace"):
        KubernetesJob("No Namespace", folder=tmp_path)
    with pytest.raises(ConfigError, match="workload is 'unknown': choose one of job, "):
        KubernetesOptions(workload="unknown")


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    options = KubernetesOptions(kubeconfig=tmp_path / "none")
    job = KubernetesJob("default", options=options, folder=tmp_path)
    job.add_mesh("workers", 1, image_spec=IMAGE)
    with pytest.raises(ConfigError, match=r"none cannot be used.*give kubeconfig="):
        job.apply()
