"""The state of a job's hosts, derived from the status of their pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from mesh_jobs._backend.report import HostReport, Phase
from mesh_jobs._kube.pod_template import CONTAINER, control_port

__all__ = [
    "address_of",
    "condition",
    "epoch_of",
    "host",
    "is_going",
    "latest",
    "why_ended",
    "worker_of",
]

#: Waiting reasons of containers that do not resolve by themselves.
_HOPELESS = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)

#: Exit statuses of a worker that could not start, and would not start the next time either.
_CANNOT_START = frozenset({1, 2, 126, 127, 128})
#: A worker that has run for this long has started.
_BEGINNING_S = 60.0

#: Waiting reasons that every container has for a short time.
_BEGINS = ("", "ContainerCreating", "PodInitializing")

_OVER = ("Succeeded", "Failed")
# The limit of the restart count in an epoch, which distinguishes restarts within one second.
_RESTARTS_MAX = 1000

Object = Mapping[str, Any]


def host(
    mesh: str, rank: int, pods: Sequence[Object], port: int, ended: str, is_replaced: bool
) -> HostReport:
    """Return the state of one host.

    Args:
        mesh: The mesh of the host.
        rank: The rank of the host in the mesh.
        pods: All pods that are or were this host.
        port: The port on which the worker listens.
        ended: Why the mesh has ended; empty if it has not.
        is_replaced: Whether an ended pod is replaced.
    """
    pod = latest(pods)
    if ended:
        return HostReport(mesh, rank, Phase.ENDED, reason=why_ended(pod) or ended)
    if pod is None:
        if is_replaced:
            return HostReport(mesh, rank, Phase.PENDING, reason="it has no pod yet")
        return HostReport(mesh, rank, Phase.ENDED, reason="its pod was deleted")
    status = pod["status"]
    if status.get("phase") in _OVER or is_going(pod):
        comes_again = is_replaced and not _cannot_start(pod)
        state = Phase.PENDING if comes_again else Phase.ENDED
        reason = why_ended(pod) or f"pod {_name(pod)} is terminating"
        return HostReport(mesh, rank, state, reason=reason)
    if _is_ready(pod):
        where = address_of(pod, port)
        name = where.removeprefix("tcp://").removesuffix(f":{port}")
        control = f"grpcs://{name}:{control_port(port)}"
        return HostReport(mesh, rank, Phase.RUNNING, where, epoch=epoch_of(pod), control=control)
    reason, is_hopeless = _why_waiting(pod)
    state = Phase.ENDED if is_hopeless else Phase.PENDING
    return HostReport(mesh, rank, state, reason=reason)


def address_of(pod: Object, port: int) -> str:
    """Return the address on which a pod's worker listens; empty before the pod has an IP."""
    address = pod["status"].get("podIP") or ""
    named = f"[{address}]" if ":" in address else address
    return f"tcp://{named}:{port}" if named else ""


def latest(pods: Sequence[Object]) -> Object | None:
    """Return the current pod of a rank: one that runs, else the newest."""

    def order(pod: Object) -> tuple[bool, bool, str]:
        is_over = pod["status"].get("phase") in _OVER
        return not is_over, not is_going(pod), pod["metadata"]["creationTimestamp"]

    return max(pods, key=order, default=None)


def condition(one: Object, type: str) -> Object | None:
    """Return a condition of a pod or a job if it is true, else None."""
    for found in (one.get("status") or {}).get("conditions") or []:
        if found["type"] == type and found["status"] == "True":
            return dict(found)
    return None


def is_going(pod: Object) -> bool:
    """Return whether a pod was deleted and is in its grace period."""
    return "deletionTimestamp" in pod["metadata"]


def _is_ready(pod: Object) -> bool:
    return condition(pod, "Ready") is not None and bool(pod["status"].get("podIP"))


def epoch_of(pod: Object) -> int:
    """Return a number that increases with each worker, from its start time and restart count."""
    worker = worker_of(pod)
    state = worker.get("state") or {}
    # A worker keeps its epoch after its exit.
    began = (state.get("running") or state.get("terminated") or {}).get("startedAt")
    began = began or pod["metadata"]["creationTimestamp"]
    seconds = int(datetime.fromisoformat(began).timestamp())
    restarts = int(worker.get("restartCount", 0))
    return seconds * _RESTARTS_MAX + min(restarts, _RESTARTS_MAX - 1)


def worker_of(pod: Object) -> Object:
    """Return the status of the worker's container, or of the first one; empty if there is none."""
    statuses = pod["status"].get("containerStatuses") or []
    named = [one for one in statuses if one["name"] == CONTAINER]
    return dict(next(iter([*named, *statuses]), {}))


def _cannot_start(pod: Object) -> bool:
    """Return whether a pod failed in a way in which its replacement would fail as well."""
    ended = (worker_of(pod).get("state") or {}).get("terminated")
    if pod["status"].get("phase") != "Failed" or not ended:
        return False
    if ended.get("exitCode") not in _CANNOT_START:
        return False
    if not (ended.get("startedAt") and ended.get("finishedAt")):
        return True
    began, over = (datetime.fromisoformat(ended[key]) for key in ("startedAt", "finishedAt"))
    return (over - began).total_seconds() < _BEGINNING_S


def _why_waiting(pod: Object) -> tuple[str, bool]:
    """Return why a pod is not ready, and whether it never will be."""
    name = _name(pod)
    for one in pod["status"].get("conditions") or []:
        if one["type"] == "PodScheduled" and one["status"] != "True":
            return f"pod {name}: {one.get('reason', '')}: {one.get('message', '')}", False
    first = pod["status"].get("initContainerStatuses") or []
    for one in [*first, *(pod["status"].get("containerStatuses") or [])]:
        waiting = (one.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason not in _BEGINS:
            message = f"pod {name}: {reason}: {waiting.get('message', '')}".rstrip(": ")
            last = _how_ended((one.get("lastState") or {}).get("terminated"))
            return f"{message} ({last})" if last else message, reason in _HOPELESS
    phase = pod["status"].get("phase")
    if phase == "Running":
        return f"pod {name} runs on {pod['spec'].get('nodeName')} but is not ready", False
    return f"pod {name} is starting on {pod['spec'].get('nodeName', 'a node')}", False


def why_ended(pod: Object | None) -> str:
    """Return why a pod has ended, as the cluster reports it; empty if it has not."""
    if pod is None:
        return ""
    status, name = pod["status"], _name(pod)
    if status.get("reason"):
        return f"pod {name}: {status['reason']}: {status.get('message', '')}".rstrip(": ")
    disruption = condition(pod, "DisruptionTarget")
    if disruption:
        message = disruption.get("message", "")
        return f"pod {name}: {disruption.get('reason', 'disrupted')}: {message}".rstrip(": ")
    ended = _how_ended((worker_of(pod).get("state") or {}).get("terminated"))
    return f"pod {name}: {ended}" if ended else ""


def _how_ended(ended: Object | None) -> str:
    if not ended:
        return ""
    message = f": {ended['message']}" if ended.get("message") else ""
    return f"{ended.get('reason', 'Error')}, exit status {ended.get('exitCode')}{message}"


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])
