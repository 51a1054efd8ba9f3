"""Eviction notices from Kubernetes: pods that will be deleted while their workers still run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mesh_jobs._backend.report import HostDraining
from mesh_jobs._kube.pod_status import condition, epoch_of, is_going, worker_of

__all__ = ["NoticeBuffer", "leaving"]

#: The mapping from reasons of a condition of a pod to reasons of `HostDraining`.
_REASONS = {
    "PreemptionByScheduler": "preempt",
    "EvictionByEvictionAPI": "drain",
    "DeletionByTaintManager": "drain",
    "WorkloadEvictedDueToPreempted": "preempt",
}

#: The mapping from keys of node taints to reasons of `HostDraining`. The components that set these
#: taints evict the pods of the node, or remove the node, soon afterwards.
_TAINTS = {
    "node.kubernetes.io/unschedulable": "drain",
    "node.kubernetes.io/out-of-service": "drain",
    "node.cloudprovider.kubernetes.io/shutdown": "drain",
    "ToBeDeletedByClusterAutoscaler": "drain",
    "karpenter.sh/disrupted": "drain",
    "cloud.google.com/impending-node-termination": "preempt",
    "aws-node-termination-handler/spot-itn": "preempt",
    "aws-node-termination-handler/scheduled-maintenance": "drain",
    "aws-node-termination-handler/asg-lifecycle-termination": "drain",
    "aws-node-termination-handler/rebalance-recommendation": "preempt",
}

Object = Mapping[str, Any]


def leaving(
    mesh: str, rank: int, pods: Sequence[Object], nodes: Mapping[str, Object] | None = None
) -> list[HostDraining]:
    """Return the eviction notice of one host, or an empty list.

    A notice applies from the time that the pod has a deletion timestamp or the condition
    DisruptionTarget, or its node has a taint of a drain, until its worker has exited.

    Args:
        mesh: The mesh of the host.
        rank: The rank of the host in the mesh.
        pods: All pods that are or were this host.
        nodes: The nodes by name, if the job watches nodes.
    """
    found = []
    for pod in pods:
        if "running" not in (worker_of(pod).get("state") or {}):
            continue
        node = (nodes or {}).get(str(pod["spec"].get("nodeName")), {})
        if is_going(pod) or _disruption(pod):
            reason, seconds = _reason(pod), _seconds_left(pod)
        elif taint := _taint(node):
            # The eviction follows at an unknown time, and a disruption budget may delay it.
            reason, seconds = taint, None
        else:
            continue
        found.append(HostDraining(mesh, rank, reason, seconds, epoch_of(pod)))
    return found


class NoticeBuffer:
    """The eviction notices of pods as a watch reports them.

    A worker that has nothing to stop exits at once, so a later query may not show its notice. A
    watch reports each state of a pod in order, and therefore never misses one.

    Args:
        place: A function that returns the mesh and the rank of a pod.
    """

    def __init__(self, place: Callable[[Object], tuple[str, int]]) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._found: dict[str, HostDraining] = {}

    def add(self, pod: Object) -> None:
        """Add the notice of a pod, if it has one."""
        for notice in leaving(*self._place(pod), [pod]):
            with self._lock:
                self._found[pod["metadata"]["uid"]] = notice

    def take(self) -> list[HostDraining]:
        """Return and remove all notices."""
        with self._lock:
            found, self._found = self._found, {}
        return list(found.values())


def _disruption(pod: Object) -> Object:
    """Return the condition that announces the end of a pod; empty if there is none."""
    # Kueue has its own condition.
    return condition(pod, "DisruptionTarget") or condition(pod, "TerminationTarget") or {}


def _reason(pod: Object) -> str:
    return _REASONS.get(str(_disruption(pod).get("reason")), "end")


def _taint(node: Object) -> str:
    """Return the reason that the taints of a node give; empty if there is none."""
    taints = (node.get("spec") or {}).get("taints") or []
    return next((_TAINTS[one["key"]] for one in taints if one.get("key") in _TAINTS), "")


def _seconds_left(pod: Object) -> float | None:
    """Return the seconds until the pod is killed; None if they are unknown."""
    meta = pod["metadata"]
    if not is_going(pod):
        # The condition is set immediately before the pod is deleted with its own grace period.
        return float(pod["spec"]["terminationGracePeriodSeconds"]) if _is_evicted(pod) else None
    left_s = (datetime.fromisoformat(meta["deletionTimestamp"]) - datetime.now(UTC)).total_seconds()
    # The local clock may differ from the cluster's clock.
    return max(0.0, min(left_s, float(meta.get("deletionGracePeriodSeconds") or left_s)))


def _is_evicted(pod: Object) -> bool:
    has_grace = "terminationGracePeriodSeconds" in pod["spec"]
    return has_grace and str(_disruption(pod).get("reason")) in _REASONS
