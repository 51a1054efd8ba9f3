"""The eviction notices of a pod, from its own status and from its node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mesh_jobs._kube.eviction_notices import NoticeBuffer, leaving
from mesh_jobs._kube.pod_status import epoch_of

AT = "2026-01-02T03:04:05Z"
RUNNING = {"running": {"startedAt": AT}}
ENDED = {"terminated": {"startedAt": AT, "exitCode": 143}}


def pod(
    state: Any = None, disruption: str = "", type: str = "DisruptionTarget", **meta: Any
) -> dict[str, Any]:
    """Return a pod with a grace period of 600 s."""
    conditions = [{"type": type, "status": "True", "reason": disruption}]
    return {
        "metadata": {"uid": "1", "creationTimestamp": AT, **meta},
        "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 600},
        "status": {
            "containerStatuses": [{"name": "worker", "state": state or RUNNING}],
            "conditions": conditions if disruption else [],
        },
    }


def deleted(grace_s: int) -> dict[str, Any]:
    """Return the fields of a pod that was deleted now."""
    until = datetime.now(UTC) + timedelta(seconds=grace_s)
    return {"deletionTimestamp": until.isoformat(), "deletionGracePeriodSeconds": grace_s}


def node(*taints: str) -> dict[str, Any]:
    return {"n1": {"spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}}}


@pytest.mark.parametrize(
    ("disruption", "reason", "seconds"),
    [
        ("EvictionByEvictionAPI", "drain", 600),
        ("PreemptionByScheduler", "preempt", 600),
        ("DeletionByTaintManager", "drain", 600),
        # The kubelet of a full node, or of one that shuts down, has its own grace period.
        ("TerminationByKubelet", "end", None),
    ],
)
def test_a_pod_that_is_not_deleted_yet_has_its_full_grace_period(
    disruption: str, reason: str, seconds: float | None
) -> None:
    (found,) = leaving("workers", 0, [pod(disruption=disruption)])
    assert (found.reason, found.seconds) == (reason, seconds)


def test_kueue_announces_a_preemption_with_its_own_condition() -> None:
    reason, type = "WorkloadEvictedDueToPreempted", "TerminationTarget"
    (found,) = leaving("workers", 0, [pod(disruption=reason, type=type)])
    assert (found.reason, found.seconds) == ("preempt", 600)


def test_a_deleted_pod_has_the_remaining_time_until_its_deletion() -> None:
    (found,) = leaving("workers", 0, [pod(disruption="EvictionByEvictionAPI", **deleted(30))])
    assert found.reason == "drain"
    assert found.seconds is not None
    assert 0 < found.seconds <= 30


@pytest.mark.parametrize(
    ("taint", "reason"),
    [
        ("node.kubernetes.io/unschedulable", "drain"),
        ("node.kubernetes.io/out-of-service", "drain"),
        ("aws-node-termination-handler/spot-itn", "preempt"),
    ],
)
def test_a_taint_of_the_node_announces_an_eviction(taint: str, reason: str) -> None:
    (found,) = leaving("workers", 0, [pod()], node("team", taint))
    assert (found.reason, found.seconds) == (reason, None)


def test_other_taints_and_other_nodes_announce_nothing() -> None:
    assert leaving("workers", 0, [pod()], node("nvidia.com/gpu")) == []
    assert leaving("workers", 0, [pod()], {"n2": node("node.kubernetes.io/unschedulable")}) == []


def test_an_exited_worker_is_not_reported_as_leaving() -> None:
    assert leaving("workers", 0, [pod(ENDED, "EvictionByEvictionAPI", **deleted(30))]) == []


def test_the_epoch_of_a_worker_does_not_change_when_it_exits() -> None:
    assert epoch_of(pod(ENDED)) == epoch_of(pod(RUNNING))


def test_a_buffer_keeps_the_last_notice_of_a_pod_after_it_terminates() -> None:
    buffer = NoticeBuffer(lambda pod: ("workers", 3))
    buffer.add(pod(disruption="EvictionByEvictionAPI"))
    buffer.add(pod(disruption="EvictionByEvictionAPI", **deleted(30)))
    buffer.add(pod(ENDED, "EvictionByEvictionAPI", **deleted(30)))
    (found,) = buffer.take()
    assert (found.mesh, found.rank, found.reason) == ("workers", 3, "drain")
    assert found.seconds is not None
    assert found.seconds <= 30
    assert buffer.take() == []
