"""Jobs in terminating namespaces, as the controllers of Kubernetes treat them.

The tests run the steps of the controllers of the stand-in until nothing changes any more.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.kube.api.api import Api
from tests.jobs.kube.api.kind import Kinds
from tests.jobs.kube.api.permissions import Permissions
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.request import read
from tests.jobs.kube.api.store import Store
from tests.jobs.kube.controllers.garbage import Garbage
from tests.jobs.kube.controllers.indexed_jobs import (
    FAILURE_COUNT,
    INDEX,
    RETRY_MAX_S,
    RETRY_S,
    TRACKING,
    IndexedJobs,
)
from tests.jobs.kube.controllers.loop import Controller
from tests.jobs.kube.controllers.namespaces import Namespaces
from tests.jobs.kube.pods import WAIT, indexed_job, pod

NAMESPACE = "/api/v1/namespaces/test"
PODS = f"{NAMESPACE}/pods"
JOB = "/apis/batch/v1/namespaces/test/jobs/j"

#: Number of steps within which the controllers must be done.
STEPS_MAX = 50


class ControlPlane:
    """The API and the controllers without threads. The test owns the clock; no pod ever runs."""

    def __init__(self) -> None:
        self._store, self._kinds = Store(), Kinds()
        permissions = Permissions(self._store, self._kinds, "token")
        self._api = Api(self._store, self._kinds, permissions)
        self.now_s = 0.0
        self._controllers: list[Controller] = [
            IndexedJobs(self._store, self._kinds, now=lambda: self.now_s),
            Garbage(self._store, self._kinds),
            Namespaces(self._store, self._kinds),
        ]
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": "test"}})

    def request(self, method: str, path: str, body: Any = None) -> Any:
        return self._api.answer(read(self._kinds, method, path, body, "application/json"))[1]

    def pods(self) -> list[Any]:
        return list(self.request("GET", PODS)["items"])

    def exists(self, path: str) -> bool:
        try:
            return bool(self.request("GET", path))
        except Refusal as refusal:
            if refusal.code == 404:
                return False
            raise

    def settle(self, after_s: float = 0.0) -> None:
        """Advance the clock, and run the controllers until they change nothing any more."""
        self.now_s += after_s
        for _ in range(STEPS_MAX):
            before = self._store.version
            for controller in self._controllers:
                controller.step()
            if self._store.version == before:
                return
        raise AssertionError(f"the controllers were not done after {STEPS_MAX} steps")


@pytest.fixture
def plane() -> ControlPlane:
    return ControlPlane()


def _begin(plane: ControlPlane, **settings: Any) -> list[Any]:
    """Create a job and return its pods."""
    plane.request("POST", JOB.removesuffix("/j"), indexed_job("j", WAIT, 2, **settings))
    plane.settle()
    return plane.pods()


def test_failures_counted_per_index_block_the_deletion_of_a_namespace(plane: ControlPlane) -> None:
    _begin(plane, backoffLimitPerIndex=20)
    plane.request("DELETE", NAMESPACE)
    plane.settle()
    plane.settle(after_s=RETRY_MAX_S)
    kept = [one["metadata"] for one in plane.pods()]
    assert [one["finalizers"] for one in kept] == [[TRACKING], [TRACKING]]
    assert all("deletionTimestamp" in one for one in kept)
    assert "deletionTimestamp" not in plane.request("GET", JOB)["metadata"]
    # Deleting the job by hand releases the namespace.
    plane.request("DELETE", JOB)
    plane.settle()
    assert not plane.exists(NAMESPACE)


def test_failures_counted_per_job_do_not_block_the_deletion_of_a_namespace(
    plane: ControlPlane,
) -> None:
    _begin(plane)
    plane.request("DELETE", NAMESPACE)
    plane.settle()
    assert not plane.exists(NAMESPACE)


def test_a_failed_pod_of_an_index_stays_until_it_is_replaced(plane: ControlPlane) -> None:
    first, other = _begin(plane, backoffLimitPerIndex=20)
    plane.request("DELETE", f"{PODS}/{first['metadata']['name']}")
    plane.settle()
    assert [one["metadata"]["uid"] for one in plane.pods()] == [
        first["metadata"]["uid"],
        other["metadata"]["uid"],
    ]
    plane.settle(after_s=RETRY_S)
    notes = {
        one["metadata"]["annotations"][INDEX]: one["metadata"]["annotations"][FAILURE_COUNT]
        for one in plane.pods()
    }
    assert notes == {"0": "1", "1": "0"}
    assert len(plane.pods()) == 2


def test_each_failed_pod_of_a_job_doubles_the_delay_of_replacements(plane: ControlPlane) -> None:
    before = _begin(plane)
    for one in before:
        plane.request("DELETE", f"{PODS}/{one['metadata']['name']}")
    plane.settle()
    assert plane.pods() == []
    plane.settle(after_s=RETRY_S)
    assert plane.pods() == []
    plane.settle(after_s=RETRY_S)
    assert len(plane.pods()) == 2


def test_pods_orphaned_by_a_deleted_job_have_no_finalizer(plane: ControlPlane) -> None:
    _begin(plane, backoffLimitPerIndex=20)
    plane.request("DELETE", JOB, {"propagationPolicy": "Orphan"})
    plane.settle()
    assert [one["metadata"]["finalizers"] for one in plane.pods()] == [[], []]


def test_a_terminating_namespace_accepts_no_new_objects(plane: ControlPlane) -> None:
    _begin(plane, backoffLimitPerIndex=20)
    plane.request("DELETE", NAMESPACE)
    with pytest.raises(Refusal, match=r'pods "a" is forbidden: .*is being terminated') as refused:
        plane.request("POST", PODS, pod("a", WAIT))
    details: Any = refused.value.body["details"]
    (cause,) = details["causes"]
    assert cause["reason"] == "NamespaceTerminating"
