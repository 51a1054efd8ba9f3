"""Kueue: the labels and annotations by which a queue admits all hosts of a job together."""

from __future__ import annotations

from typing import Any

from mesh_core import ConfigError
from mesh_jobs._backend.allocation_request import AllocationRequest

__all__ = ["check_queue", "enqueue"]

_PREFIX = "kueue.x-k8s.io"
# The number of different pod templates that Kueue accepts in a group.
_GROUP_MESHES_MAX = 8

Object = dict[str, Any]


def check_queue(request: AllocationRequest, kind: str) -> None:
    """Reject a job that its queue would not admit as a whole.

    Raises:
        ConfigError: Its workloads would be admitted one by one, or not at all.
    """
    queue, meshes = request.spec.options.get("queue"), len(request.spec.meshes)
    if queue is None:
        return
    if kind in ("job", "statefulset") and meshes > 1:
        raise ConfigError(
            f"queue {queue!r} would admit each {kind} of the {meshes} meshes separately: use "
            "workload='pods', or workload='jobset' if the cluster has JobSet"
        )
    if kind == "pods" and meshes > _GROUP_MESHES_MAX:
        raise ConfigError(
            f"queue {queue!r} admits a group of at most {_GROUP_MESHES_MAX} meshes, and the job "
            f"has {meshes}: use fewer, or workload='jobset' if the cluster has JobSet"
        )


def enqueue(request: AllocationRequest, kind: str, group: str, body: Object) -> None:
    """Add a workload to the queue of its job, if the job has one.

    Args:
        request: The allocation request.
        kind: The kind of the workload.
        group: A name for all pods of the job, if they are created individually.
        body: The workload, which is modified.
    """
    queue = request.spec.options.get("queue")
    if queue is None:
        return
    body["metadata"]["labels"][f"{_PREFIX}/queue-name"] = queue
    if kind != "pods":
        return
    # Kueue ignores pods whose owner it manages, such as a Job; only individual pods form a group.
    body["metadata"]["labels"][f"{_PREFIX}/pod-group-name"] = group
    total = sum(mesh.hosts for mesh in request.spec.meshes)
    body["metadata"].setdefault("annotations", {}).update(
        {
            f"{_PREFIX}/pod-group-total-count": str(total),
            # Nobody replaces these pods. Kueue would keep them, and their quota, for replacements.
            f"{_PREFIX}/retriable-in-group": "false",
        }
    )
