"""MeshJobs reach their desired state while operators are killed or duplicated or servers fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from tests.jobs.kube.cluster import Cluster, eventually
from tests.jobs.kube.operators import MeshJobs, OperatorProcess, manifests, mesh, rules

Operators = Callable[..., OperatorProcess]

#: The pods are created and stay pending, so that nothing runs.
NOWHERE = {"nodeSelector": {"such-nodes": "none"}}


@pytest.fixture(scope="module")
def mesh_jobs(cluster: Cluster) -> MeshJobs:
    return MeshJobs(cluster)


@pytest.fixture
def user(cluster: Cluster, namespace: str) -> Path:
    """A user with the permissions of an operator, in this namespace only."""
    # The rules are the same for each namespace.
    made = manifests("--namespace", "mesh-system")
    return cluster.user(namespace, rules("Role", made=made))


@pytest.fixture
def operators(namespace: str, user: Path) -> Iterator[Operators]:
    """Start operators for a namespace; they are killed after the test."""
    begun: list[OperatorProcess] = []

    def begin(kubeconfig: Path = user) -> OperatorProcess:
        begun.append(OperatorProcess(kubeconfig, "--namespace", namespace, "--lease", "1"))
        return begun[-1]

    yield begin
    for one in begun:
        one.kill()


def _holder(cluster: Cluster, namespace: str) -> str:
    leases: Any = client.CoordinationV1Api(cluster.client)
    found = leases.list_namespaced_lease(namespace).items
    return str(found[0].spec.holder_identity) if found else ""


def _forget_lease(cluster: Cluster, namespace: str) -> None:
    leases: Any = client.CoordinationV1Api(cluster.client)
    for one in leases.list_namespaced_lease(namespace).items:
        leases.delete_namespaced_lease(one.metadata.name, namespace)


def _made(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Return all objects that operators created, with uids that distinguish replacements."""
    lists = (
        cluster.core.list_namespaced_secret,
        cluster.core.list_namespaced_service,
        cluster.batch.list_namespaced_job,
    )
    label = "mesh-jobs/mesh-job"
    found = [
        (f"{place}/{one.metadata.name}", one.metadata.uid)
        for place, each in enumerate(lists)
        for one in each(namespace, label_selector=label).items
    ]
    return dict(found)


def test_an_operator_may_be_killed_between_any_two_of_its_requests(
    stand_in: Cluster, namespace: str, mesh_jobs: MeshJobs, user: Path, operators: Operators
) -> None:
    """Each operator gets one write further than the previous one and is killed at the next."""
    mesh_jobs.create(namespace, "train", mesh(**NOWHERE))
    name = user.name.removesuffix(".kubeconfig")
    kept: dict[str, str] = {}
    kills = 0
    sizes = [1, 2]

    def is_done() -> bool:
        told = mesh_jobs.condition(namespace, "train", "Progressing") == ("True", "Unschedulable")
        return told and len(stand_in.pods(namespace)) == sizes[0]

    while sizes:
        with stand_in.failing("hold", user=name, verb="write", plural="!leases", after=1):
            operator = operators()
            eventually(lambda: stand_in.held() or is_done())
            is_killed = not is_done()
            operator.kill()
        _forget_lease(stand_in, namespace)
        now = _made(stand_in, namespace)
        assert kept.items() <= now.items()
        kept = now
        kills += is_killed
        if not is_killed:
            sizes.pop(0)
            if sizes:
                mesh_jobs.patch(namespace, "train", mesh(hosts=sizes[0], **NOWHERE))
    assert kills >= 4
    assert sorted(one[0] for one in kept) == ["0", "1", "2"]
    assert len(stand_in.pods(namespace)) == 2
    mesh_jobs.delete(namespace, "train")
    eventually(lambda: not stand_in.leftovers(namespace))


def test_one_of_two_operators_is_active_and_the_other_takes_over(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs, operators: Operators
) -> None:
    both = {one.name: one for one in (operators(), operators())}
    first = eventually(lambda: _holder(cluster, namespace))
    mesh_jobs.create(namespace, "one", mesh(**NOWHERE))
    eventually(lambda: len(cluster.pods(namespace)) == 1)
    both.pop(first).kill()
    mesh_jobs.create(namespace, "two", mesh(**NOWHERE))
    eventually(lambda: len(cluster.pods(namespace)) == 2)
    (other,) = both
    assert _holder(cluster, namespace) == other
    assert len(_made(cluster, namespace)) == 6
    assert both[other].end() == ""
    # An operator that stops in an orderly way releases its lease immediately.
    assert _holder(cluster, namespace) in ("", "None")


@pytest.mark.parametrize(
    "how",
    [
        "410",
        pytest.param("504", marks=pytest.mark.slow),
        pytest.param("expire", marks=pytest.mark.slow),
    ],
)
def test_an_operator_survives_failures_of_its_watches(
    stand_in: Cluster,
    namespace: str,
    mesh_jobs: MeshJobs,
    user: Path,
    operators: Operators,
    how: str,
) -> None:
    name = user.name.removesuffix(".kubeconfig")
    with stand_in.failing(how, user=name, verb="watch", after=1, times=12):
        operator = operators()
        for number in range(3):
            mesh_jobs.create(namespace, f"train-{number}", mesh(**NOWHERE))
            eventually(lambda wanted=number + 1: len(stand_in.pods(namespace)) == wanted)
        stand_in.forget_history()
        mesh_jobs.delete(namespace, "train-0")
        eventually(lambda: len(stand_in.pods(namespace)) == 2)
    assert operator.end() == ""


def test_an_operator_waits_for_an_unreachable_server(
    cluster: Cluster, namespace: str, mesh_jobs: MeshJobs, user: Path, operators: Operators
) -> None:
    proxy, kubeconfig = cluster.breakable_proxy(user)
    operators(kubeconfig)
    mesh_jobs.create(namespace, "one", mesh(**NOWHERE))
    eventually(lambda: len(cluster.pods(namespace)) == 1)
    before = _made(cluster, namespace)
    with proxy.closed():
        mesh_jobs.create(namespace, "two", mesh(**NOWHERE))
    eventually(lambda: len(cluster.pods(namespace)) == 2)
    assert before.items() <= _made(cluster, namespace).items()
    proxy.end()
