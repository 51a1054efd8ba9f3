"""The report on a job, derived from its pods and its workloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mesh_jobs._backend.report import Allocation, HostReport, Phase, Report
from mesh_jobs._kube.manifests import MESH_LABEL, RANK_LABELS
from mesh_jobs._kube.pod_status import condition, host

__all__ = ["rank_of", "report_of", "summed"]

Object = dict[str, Any]


def report_of(allocation: Allocation, pods: Sequence[Object], makers: Sequence[Object]) -> Report:
    """Return the report on a job.

    Args:
        allocation: The allocation.
        pods: All pods of the job.
        makers: The workloads that created them, unless the pods were created individually.
    """
    by_name = {one["metadata"]["name"]: one for one in makers}
    kind = allocation["workload"]
    hosts = [one for mesh in allocation["meshes"] for one in _hosts(kind, mesh, pods, by_name)]
    return summed(hosts)


def rank_of(kind: str, pod: Mapping[str, Any]) -> int:
    """Return the rank of a pod in its mesh, depending on its workload; -1 if it is unknown."""
    return int(pod["metadata"]["labels"].get(RANK_LABELS[kind], -1))


def _hosts(
    kind: str, mesh: Object, pods: Sequence[Object], makers: Mapping[str, Object]
) -> list[HostReport]:
    mine = [pod for pod in pods if pod["metadata"]["labels"].get(MESH_LABEL) == mesh["name"]]
    ended, waits = "", ""
    if kind != "pods":
        maker = makers.get(mesh["object"])
        if maker is None:
            ended = f"{kind} {mesh['object']} was deleted"
        elif kind in ("job", "jobset"):
            ended, waits = _state_of_job(maker)
    given_up = _given_up(makers.get(mesh["object"], {})) if kind == "job" else set()
    by_rank: dict[int, list[Object]] = {}
    for pod in mine:
        by_rank.setdefault(rank_of(kind, pod), []).append(pod)
    if waits and not mine:
        return [
            HostReport(mesh["name"], rank, Phase.PENDING, reason=waits)
            for rank in range(mesh["hosts"])
        ]
    return [
        host(
            mesh["name"],
            rank,
            by_rank.get(rank, []),
            mesh["port"],
            ended or ("its pods have failed too often" if rank in given_up else ""),
            kind != "pods",
        )
        for rank in range(mesh["hosts"])
    ]


def _state_of_job(job: Object) -> tuple[str, str]:
    """Return why a Job has ended, and why it waits as a whole; empty if it does not."""
    name = job["metadata"]["name"]
    for type in ("Failed", "Complete", "Completed"):
        if found := condition(job, type):
            message = found.get("message") or found.get("reason", "")
            what = "failed" if type == "Failed" else "is complete: no program used its workers"
            return f"job {name} {what}: {message}".rstrip(": "), ""
    if job["spec"].get("suspend"):
        return "", f"job {name} is suspended: it waits in a queue"
    return "", ""


def _given_up(job: Object) -> set[int]:
    """Return the indexes whose pods have failed too often; the status lists them as `1,3-5`."""
    found: set[int] = set()
    for part in filter(None, (job.get("status") or {}).get("failedIndexes", "").split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def summed(hosts: Sequence[HostReport]) -> Report:
    """Return the report on a job from its hosts; it has ended when all of them have."""
    states = {one.state for one in hosts}
    reason = next((one.reason for one in hosts if one.reason), "")
    if states <= {Phase.ENDED}:
        return Report(Phase.ENDED, reason, tuple(hosts))
    if Phase.PENDING in states:
        waits = next(one.reason for one in hosts if one.state is Phase.PENDING)
        return Report(Phase.PENDING, waits, tuple(hosts))
    return Report(Phase.RUNNING, "", tuple(hosts))
