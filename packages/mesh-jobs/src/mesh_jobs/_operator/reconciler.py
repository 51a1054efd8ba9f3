"""Reconciliation of one MeshJob: an idempotent step from its observed to its desired state."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mesh_core import ConfigError, Credentials
from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._errors import JobError, SchedulerUnreachable
from mesh_jobs._kube.manifests import (
    MESH_LABEL,
    PLURALS,
    allocation_of,
    manifests,
    secret,
    secret_keys,
    secret_name,
    size,
)
from mesh_jobs._kube.mesh_job import (
    MESH_JOB_LABEL,
    ReconcileResult,
    allocation_id,
    fingerprints,
    finished_at,
    job_spec,
    status_of,
)
from mesh_jobs._kube.pod_status import condition, is_going
from mesh_jobs._kube.report import rank_of, report_of
from mesh_jobs._kube.secret import CONTROLLER_KEY, encoded, packed
from mesh_jobs._kube_api.client import CRD_GROUP, CRD_VERSION, KubeApi, KubeConflict, KubeNotFound

__all__ = ["ObservedState", "reconcile"]

_FINGERPRINT = "mesh-jobs/made-of"
# Credentials are not renewed: a MeshJob that lasts longer must be created again.
_KEYS_LIVE_S = 365 * 24 * 3600.0

Object = dict[str, Any]


@dataclass(frozen=True)
class ObservedState:
    """The observed state of one MeshJob.

    Attributes:
        pods: The pods of the MeshJob.
        workloads: The workloads of the MeshJob, unless the pods themselves are the workloads.
    """

    pods: Sequence[Object] = ()
    workloads: Sequence[Object] = ()


def reconcile(api: KubeApi, mesh_job: Object, observed: ObservedState) -> None:
    """Create missing objects, scale workloads, and write the status.

    Args:
        api: The API client for the namespace of the MeshJob.
        mesh_job: The MeshJob.
        observed: The observed state of the MeshJob.

    Raises:
        SchedulerUnreachable: The API server does not respond; retry later.
        JobError: The API server rejected a request, which the status reports as well.
    """
    if "deletionTimestamp" in mesh_job["metadata"]:
        return  # The garbage collector deletes the owned objects.
    if finished_at(mesh_job) is not None:
        _expire(api, mesh_job)
        return
    try:
        spec = job_spec(mesh_job)
        request = AllocationRequest(allocation_id(mesh_job), spec, Path("."))
        name = secret_name(request)
        desired = _desired(mesh_job, request)
    except (ConfigError, JobError) as error:
        _write_status(api, mesh_job, "", ReconcileResult(None, ("InvalidSpec", str(error))))
        return
    try:
        result = _apply(api, mesh_job, request, desired, observed)
    except SchedulerUnreachable:
        raise
    except JobError as error:
        _write_status(api, mesh_job, name, ReconcileResult(None, ("Refused", str(error))))
        raise
    _write_status(api, mesh_job, name, result)


def _desired(mesh_job: Object, request: AllocationRequest) -> list[tuple[str, Object]]:
    """Return the manifests that a `KubernetesJob` would apply, owned by the MeshJob."""
    marks, bodies = fingerprints(mesh_job), []
    for mesh, plural, body in manifests(request, str(request.spec.options["workload"])):
        if plural != "services":
            notes = body["metadata"].setdefault("annotations", {})
            notes[_FINGERPRINT] = marks[mesh.name]
        # Finished workloads must remain until they are observed; they are deleted with the MeshJob.
        body["spec"].pop("ttlSecondsAfterFinished", None)
        bodies.append((plural, _owned(mesh_job, body)))
    return bodies


def _owned(mesh_job: Object, body: Object) -> Object:
    meta = mesh_job["metadata"]
    body["metadata"]["labels"][MESH_JOB_LABEL] = meta["name"]
    body["metadata"]["ownerReferences"] = [
        {
            "apiVersion": f"{CRD_GROUP}/{CRD_VERSION}",
            "kind": "MeshJob",
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    return body


def _apply(
    api: KubeApi,
    mesh_job: Object,
    request: AllocationRequest,
    desired: list[tuple[str, Object]],
    observed: ObservedState,
) -> ReconcileResult:
    kind = str(request.spec.options["workload"])
    existing = {
        one["metadata"]["name"]: one
        for one in (observed.workloads if kind != "pods" else observed.pods)
    }
    changed = ""
    # Workloads are created last, so if all of them exist, everything else does.
    if any(
        body["metadata"]["name"] not in existing for plural, body in desired if _is_workload(plural)
    ):
        _ensure_secret(api, mesh_job, request)
        for plural, body in desired:
            if not _is_workload(plural):
                _create_if_missing(api, plural, body)
            elif body["metadata"]["name"] not in existing:
                existing[body["metadata"]["name"]] = _create_if_missing(api, plural, body)
    for plural, body in desired:
        if _is_workload(plural):
            changed = changed or _resize(api, plural, body, existing[body["metadata"]["name"]])
    if kind == "pods":
        _scale_down(api, request, observed.pods)
    allocation = allocation_of(request, kind, api.namespace)
    report = report_of(allocation, observed.pods, list(existing.values()) if kind != "pods" else ())
    problem = ("SpecChanged", changed) if changed else None
    ends = {_terminal_state(kind, one) for one in existing.values()}
    return ReconcileResult(report, problem, is_finished="" not in ends, is_unused=ends == {"well"})


def _is_workload(plural: str) -> bool:
    return plural != "services"


def _create_if_missing(api: KubeApi, plural: str, body: Object) -> Object:
    try:
        return api.create(plural, body)
    except KubeConflict:
        # The name contains the uid of the MeshJob, so an earlier attempt created the object.
        return body


def _ensure_secret(api: KubeApi, mesh_job: Object, request: AllocationRequest) -> None:
    try:
        api.get("secrets", secret_name(request))
    except KubeNotFound:
        credentials = Credentials.create(valid_for=_KEYS_LIVE_S)
        with TemporaryDirectory(prefix=".mesh-operator-") as folder:
            keys = Path(folder, "keys")
            keys.mkdir(mode=0o700)
            issuing = AllocationRequest(request.id, request.spec, Path(folder), credentials)
            contents = {
                key: encoded(issuing.worker(mesh.name, "env:RANK").secret)
                for key, mesh in secret_keys(request)
            }
        contents[CONTROLLER_KEY] = encoded(packed(credentials))
        _create_if_missing(api, "secrets", _owned(mesh_job, secret(request, contents)))


def _resize(api: KubeApi, plural: str, desired: Object, existing: Object) -> str:
    """Scale a workload; return why its other fields differ from the spec, or an empty string."""
    name = desired["metadata"]["name"]
    mark = (existing["metadata"].get("annotations") or {}).get(_FINGERPRINT)
    if mark != desired["metadata"]["annotations"][_FINGERPRINT]:
        mesh = desired["metadata"]["labels"][MESH_LABEL]
        return (
            f"mesh {mesh} differs from the one that {plural}/{name} was created from: only hosts "
            "can change: restore the other fields, or create another MeshJob"
        )
    if plural == "pods":
        return ""
    kind = next(kind for kind, known in PLURALS.items() if known == plural)
    fields = ("completions", "parallelism") if kind == "job" else ("replicas",)
    wanted = int(desired["spec"][fields[0]])
    if not _terminal_state(kind, existing) and any(
        existing["spec"].get(field) != wanted for field in fields
    ):
        api.patch(plural, name, {"spec": size(kind, wanted)})
    return ""


def _terminal_state(kind: str, one: Object) -> str:
    """Return the terminal state of a workload, `well` or `badly`; empty if it is not terminal."""
    phase = (one.get("status") or {}).get("phase") if kind == "pods" else ""
    if phase == "Failed" or (kind == "job" and condition(one, "Failed")):
        return "badly"
    if phase == "Succeeded" or (kind == "job" and condition(one, "Complete")):
        return "well"
    return ""


def _scale_down(api: KubeApi, request: AllocationRequest, pods: Sequence[Object]) -> None:
    sizes: Mapping[str, int] = {mesh.name: mesh.hosts for mesh in request.spec.meshes}
    for pod in pods:
        limit = sizes.get(pod["metadata"]["labels"].get(MESH_LABEL, ""), 0)
        if rank_of("pods", pod) >= limit and not is_going(pod):
            api.delete("pods", pod["metadata"]["name"], pod["metadata"]["uid"])


def _expire(api: KubeApi, mesh_job: Object) -> None:
    lasts, ended = mesh_job["spec"].get("ttlSecondsAfterFinished"), finished_at(mesh_job)
    assert ended is not None, "only a finished MeshJob expires"
    if lasts is not None and time.time() - ended.timestamp() >= lasts:
        api.delete("meshjobs", mesh_job["metadata"]["name"], mesh_job["metadata"]["uid"])


def _write_status(api: KubeApi, mesh_job: Object, secret: str, result: ReconcileResult) -> None:
    status = status_of(mesh_job, secret, result)
    if status != mesh_job.get("status"):
        # The MeshJob may have been deleted since it was observed.
        with suppress(KubeNotFound):
            api.patch("meshjobs", f"{mesh_job['metadata']['name']}/status", {"status": status})
