"""Pods that are about to end, reported while their workers still run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mesh_jobs._backend.report import HostLeaving
from mesh_jobs._kube.pod_status import condition, epoch_of, is_going, worker_of

__all__ = ["leaving"]

#: The reasons of the condition DisruptionTarget, and what they are for a program.
_REASONS = {
    "PreemptionByScheduler": "preempt",
    "EvictionByEvictionAPI": "drain",
    "DeletionByTaintManager": "drain",
}

Object = Mapping[str, Any]


def leaving(mesh: str, rank: int, pods: Sequence[Object]) -> list[HostLeaving]:
    """Returns the worker of one host that is about to end; an empty list if none is.

    A pod leaves from the moment that the cluster announces it, by a deletion timestamp or by the
    condition DisruptionTarget, until its worker has exited.

    Args:
        mesh: The mesh of the host.
        rank: Its place there.
        pods: All pods that are or were this host.
    """
    now = datetime.now(UTC)
    return [
        HostLeaving(mesh, rank, _reason(pod), _seconds_left(pod, now), epoch_of(pod))
        for pod in pods
        if "running" in (worker_of(pod).get("state") or {})
        and (is_going(pod) or condition(pod, "DisruptionTarget") is not None)
    ]


def _reason(pod: Object) -> str:
    disruption = condition(pod, "DisruptionTarget") or {}
    return _REASONS.get(str(disruption.get("reason")), "end")


def _seconds_left(pod: Object, now: datetime) -> float | None:
    """The time until the pod is killed; None before it is deleted."""
    meta = pod["metadata"]
    if not is_going(pod):
        return None
    left_s = (datetime.fromisoformat(meta["deletionTimestamp"]) - now).total_seconds()
    # The clock here can differ from that of the cluster.
    return max(0.0, min(left_s, float(meta.get("deletionGracePeriodSeconds") or left_s)))
