"""Existing pods as hosts of a job, from a MeshJob or selected by labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mesh_core import ConfigError
from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._backend.attachment import Attachment
from mesh_jobs._backend.follower import Follower
from mesh_jobs._backend.report import Allocation, HostReport, Phase, Report
from mesh_jobs._errors import JobError, JobPending
from mesh_jobs._kube.follower import Selection, follow_objects
from mesh_jobs._kube.manifests import ALLOCATION_LABEL, MESH_LABEL, RANK_LABELS
from mesh_jobs._kube.mesh_job import allocation_id, finished_at
from mesh_jobs._kube.pod_status import host
from mesh_jobs._kube.report import summed
from mesh_jobs._kube.secret import unpacked
from mesh_jobs._kube_api.client import KubeApi, KubeNotFound
from mesh_jobs._spec import JobSpec, MeshSpec

__all__ = [
    "attached_allocation",
    "attached_follow",
    "attached_host_pods",
    "attached_pods",
    "attached_report",
    "attachment",
    "is_attaching",
    "set_hosts",
]

_ORDINAL = re.compile(r"-(\d+)$")

Object = dict[str, Any]


def is_attaching(spec: JobSpec) -> bool:
    """Return whether a job uses existing pods."""
    return bool(spec.options.get("mesh_job") or spec.options.get("credentials_secret"))


def attachment(api: KubeApi, spec: JobSpec) -> Attachment:
    """Return the meshes and the credentials to attach to.

    Raises:
        JobPending: They do not exist yet.
        SchedulerUnreachable: The API server does not respond.
        JobError: The MeshJob or the Secret does not exist, or is invalid.
    """
    name = spec.options.get("mesh_job")
    if name is None:
        secret, meshes = str(spec.options["credentials_secret"]), spec.meshes
    else:
        found = _mesh_job(api, name)
        secret = (found.get("status") or {}).get("secret", "")
        if not secret:
            raise JobPending(
                f"no operator has created the pods of MeshJob {name} yet: check that an operator "
                "is running, and try again"
            )
        meshes = tuple(_meshes(found))
    try:
        contents = api.get("secrets", secret).get("data") or {}
    except KubeNotFound as error:
        raise JobError(
            f"there is no secret {secret}: create it with the credentials of the workers"
        ) from error
    return Attachment(meshes, unpacked(secret, contents))


def _mesh_job(api: KubeApi, name: str) -> Object:
    try:
        return api.get("meshjobs", name)
    except KubeNotFound as error:
        raise JobError(
            f"there is no MeshJob {name} in namespace {api.namespace}: apply one"
        ) from error


def _meshes(mesh_job: Object) -> Iterator[MeshSpec]:
    spec = mesh_job["spec"]
    for mesh in spec["meshes"]:
        selector = f"{ALLOCATION_LABEL}={allocation_id(mesh_job)},{MESH_LABEL}={mesh['name']}"
        options = {
            "port": mesh.get("port", 26600),
            "label_selector": selector,
            "pod_rank_label": RANK_LABELS[spec.get("workload", "job")],
        }
        yield MeshSpec(mesh["name"], mesh["hosts"], options=options)


def attached_allocation(api: KubeApi, request: AllocationRequest) -> Allocation:
    """Return the allocation by which the pods are found again.

    Raises:
        SchedulerUnreachable: The API server does not respond.
        JobError: The MeshJob does not exist.
    """
    name = request.spec.options.get("mesh_job")
    return {
        "attached": True,
        "id": request.id,
        "namespace": api.namespace,
        "mesh_job": name,
        "uid": None if name is None else _mesh_job(api, name)["metadata"]["uid"],
        "meshes": [
            {
                "name": mesh.name,
                "hosts": mesh.hosts,
                "port": mesh.options["port"],
                "selector": mesh.options["label_selector"],
                "rank_label": mesh.options["pod_rank_label"],
            }
            for mesh in request.spec.meshes
        ],
    }


def attached_report(api: KubeApi, allocation: Allocation) -> Report:
    """Return a report from the pods and their MeshJob."""
    mesh_jobs: list[Object] = []
    if allocation["mesh_job"] is not None:
        try:
            mesh_jobs = [api.get("meshjobs", allocation["mesh_job"])]
        except KubeNotFound:
            mesh_jobs = []
    return _reading(allocation, [mesh_jobs, *(_pods(api, mesh) for mesh in allocation["meshes"])])


@contextmanager
def attached_follow(api: KubeApi, allocation: Allocation, *, has_nodes: bool) -> Iterator[Follower]:
    """Watch the pods and their MeshJob."""
    watched = [_mesh_selection(mesh) for mesh in allocation["meshes"]]
    has_mesh_job = allocation["mesh_job"] is not None
    if has_mesh_job:
        watched.insert(0, Selection("meshjobs", ""))

    def reading(known: Sequence[list[Object]]) -> Report:
        return _reading(allocation, known if has_mesh_job else [[], *known])

    def fetch() -> Report:
        return attached_report(api, allocation)

    with follow_objects(api, watched, reading, fetch, has_nodes=has_nodes) as follower:
        yield follower


def _mesh_selection(mesh: Object) -> Selection:
    def place(pod: Mapping[str, Any]) -> tuple[str, int]:
        return mesh["name"], _rank(mesh["rank_label"], pod)

    return Selection("pods", mesh["selector"], place)


def attached_pods(api: KubeApi, allocation: Allocation) -> list[Object]:
    """Return all pods that a job is attached to; each has the name of its mesh as `mesh`."""
    found = ((mesh["name"], _pods(api, mesh)) for mesh in allocation["meshes"])
    return [{**pod, "mesh": name} for name, pods in found for pod in pods]


def attached_host_pods(
    allocation: Allocation, pods: Sequence[Object], mesh: str, rank: int
) -> list[Object]:
    """Return those of the attached pods that are or were the given host."""
    labels = {one["name"]: one["rank_label"] for one in allocation["meshes"]}
    return [pod for pod in pods if pod["mesh"] == mesh and _rank(labels[mesh], pod) == rank]


def set_hosts(api: KubeApi, request: AllocationRequest) -> None:
    """Change the sizes of a MeshJob to those of a request; does nothing if they are equal.

    Raises:
        ConfigError: The pods do not belong to a MeshJob, so the job cannot resize them.
        SchedulerUnreachable: The API server does not respond.
        JobError: The API server rejects the request.
    """
    name = request.spec.options.get("mesh_job")
    if name is None:
        raise ConfigError(
            "the pods were not created by this job: change their number where they were created"
        )
    meshes = _mesh_job(api, name)["spec"]["meshes"]
    wanted = {mesh.name: mesh.hosts for mesh in request.spec.meshes}
    if any(wanted.get(mesh["name"], mesh["hosts"]) != mesh["hosts"] for mesh in meshes):
        # A merge patch replaces a list as a whole.
        sized = [{**mesh, "hosts": wanted.get(mesh["name"], mesh["hosts"])} for mesh in meshes]
        api.patch("meshjobs", name, {"spec": {"meshes": sized}})


def _pods(api: KubeApi, mesh: Object) -> list[Object]:
    return api.list("pods", mesh["selector"])


def _rank(label: str, pod: Mapping[str, Any]) -> int:
    """Return the rank of a pod, from its label or the number at the end of its name, else -1."""
    value = (pod["metadata"].get("labels") or {}).get(label, "")
    if value.isdecimal():
        return int(value)
    found = _ORDINAL.search(pod["metadata"]["name"])
    return int(found[1]) if found else -1


def _reading(allocation: Allocation, known: Sequence[list[Object]]) -> Report:
    """Return a report from the matching MeshJobs, and from the pods of each mesh."""
    ended = ""
    if name := allocation["mesh_job"]:
        mine = [one for one in known[0] if one["metadata"]["uid"] == allocation["uid"]]
        if not mine:
            ended = f"MeshJob {name} was deleted"
        elif finished_at(mine[0]) is not None:
            conditions = {one["type"]: one for one in mine[0]["status"].get("conditions") or []}
            ended = f"MeshJob {name} has ended: {conditions.get('Failed', {}).get('message', '')}"
    hosts: list[HostReport] = []
    for mesh, pods in zip(allocation["meshes"], known[1:], strict=True):
        by_rank: dict[int, list[Object]] = {}
        for pod in pods:
            by_rank.setdefault(_rank(mesh["rank_label"], pod), []).append(pod)
        hosts += [
            host(mesh["name"], rank, by_rank.get(rank, []), mesh["port"], ended, True)
            for rank in range(mesh["hosts"])
        ]
    if ended:
        return Report(Phase.ENDED, ended, tuple(hosts))
    return summed(hosts)
