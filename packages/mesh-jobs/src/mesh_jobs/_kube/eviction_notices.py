"""Eviction notices from Kubernetes: pods that will be deleted while their workers still run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mesh_jobs._backend.report import HostDraining
from mesh_jobs._kube.pod_status import condition, epoch_of, is_going, worker_of

__all__ = ["leaving"]

#: The mapping from reasons of the condition DisruptionTarget to reasons of `HostDraining`.
_REASONS = {
    "PreemptionByScheduler": "preempt",
    "EvictionByEvictionAPI": "drain",
    "DeletionByTaintManager": "drain",
}

Object = Mapping[str, Any]


def leaving(mesh: str, rank: int, pods: Sequence[Object]) -> list[HostDraining]:
    """Return the eviction notice of one host, or an empty list.

    A notice applies from the time that the pod has a deletion timestamp or the condition
    DisruptionTarget until its worker has exited.

    Args:
        mesh: The mesh of the host.
        rank: The rank of the host in the mesh.
        pods: All pods that are or were this host.
    """
    now = datetime.now(UTC)
    return [
        HostDraining(mesh, rank, _reason(pod), _seconds_left(pod, now), epoch_of(pod))
        for pod in pods
        if "running" in (worker_of(pod).get("state") or {})
        and (is_going(pod) or condition(pod, "DisruptionTarget") is not None)
    ]


def _reason(pod: Object) -> str:
    disruption = condition(pod, "DisruptionTarget") or {}
    return _REASONS.get(str(disruption.get("reason")), "end")


def _seconds_left(pod: Object, now: datetime) -> float | None:
    """Return the seconds until the pod is killed; None if it is not being deleted."""
    meta = pod["metadata"]
    if not is_going(pod):
        return None
    left_s = (datetime.fromisoformat(meta["deletionTimestamp"]) - now).total_seconds()
    # The local clock may differ from the cluster's clock.
    return max(0.0, min(left_s, float(meta.get("deletionGracePeriodSeconds") or left_s)))
