"""One MeshJob brought from what there is to what it asks for: the same each time it is tried."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mesh_core import ConfigError, Credentials
from mesh_jobs._backend.order import Order
from mesh_jobs._errors import JobError, SchedulerUnreachable
from mesh_jobs._kube.manifests import (
    MESH_LABEL,
    PLURALS,
    manifests,
    secret,
    secret_keys,
    secret_name,
    size,
    ticket_of,
)
from mesh_jobs._kube.mesh_job import (
    MESH_JOB_LABEL,
    Outcome,
    fingerprints,
    finished_at,
    job_spec,
    order_id,
    status_of,
)
from mesh_jobs._kube.pod_status import condition, is_going
from mesh_jobs._kube.report import rank_of, report_of
from mesh_jobs._kube.secret import CONTROLLER_KEY, encoded, packed
from mesh_jobs._kube_api.client import CRD_GROUP, CRD_VERSION, KubeApi, KubeConflict, KubeMissing

__all__ = ["Made", "reconcile"]

_FINGERPRINT = "mesh-jobs/made-of"
# Nobody renews them: a MeshJob that lasts longer is made anew.
_KEYS_LIVE_S = 365 * 24 * 3600.0

Object = dict[str, Any]


@dataclass(frozen=True)
class Made:
    """What there is of one MeshJob, as far as is known.

    Attributes:
        pods: Its pods.
        makers: Its workloads, where these are not the pods themselves.
    """

    pods: Sequence[Object] = ()
    makers: Sequence[Object] = ()


def reconcile(api: KubeApi, mesh_job: Object, made: Made) -> None:
    """Makes what is missing, changes sizes, and tells the status.

    Args:
        api: The namespace of the MeshJob.
        mesh_job: The MeshJob.
        made: What there is of it.

    Raises:
        SchedulerUnreachable: The server does not answer: try again later.
        JobError: It refuses; the status says so too.
    """
    if "deletionTimestamp" in mesh_job["metadata"]:
        return  # All that belongs to it goes with it.
    if finished_at(mesh_job) is not None:
        _expire(api, mesh_job)
        return
    try:
        spec = job_spec(mesh_job)
        order = Order(order_id(mesh_job), spec, Path("."))
        name = secret_name(order)
        wanted = _wanted(mesh_job, order)
    except (ConfigError, JobError) as error:
        _tell(api, mesh_job, "", Outcome(None, ("InvalidSpec", str(error))))
        return
    try:
        outcome = _followed(api, mesh_job, order, wanted, made)
    except SchedulerUnreachable:
        raise
    except JobError as error:
        _tell(api, mesh_job, name, Outcome(None, ("Refused", str(error))))
        raise
    _tell(api, mesh_job, name, outcome)


def _wanted(mesh_job: Object, order: Order) -> list[tuple[str, Object]]:
    """The manifests that a `KubernetesJob` would apply, as the MeshJob's own."""
    marks, made = fingerprints(mesh_job), []
    for mesh, plural, body in manifests(order, str(order.spec.options["workload"])):
        if plural != "services":
            notes = body["metadata"].setdefault("annotations", {})
            notes[_FINGERPRINT] = marks[mesh.name]
        # What has ended stays until it was seen: the MeshJob takes it along.
        body["spec"].pop("ttlSecondsAfterFinished", None)
        made.append((plural, _owned(mesh_job, body)))
    return made


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


def _followed(
    api: KubeApi, mesh_job: Object, order: Order, wanted: list[tuple[str, Object]], made: Made
) -> Outcome:
    kind = str(order.spec.options["workload"])
    there = {one["metadata"]["name"]: one for one in (made.makers if kind != "pods" else made.pods)}
    changed = ""
    # Workloads are made last: where all are, all else is.
    if any(body["metadata"]["name"] not in there for plural, body in wanted if _makes(plural)):
        _ensure_secret(api, mesh_job, order)
        for plural, body in wanted:
            if not _makes(plural):
                _ensure(api, plural, body)
            elif body["metadata"]["name"] not in there:
                there[body["metadata"]["name"]] = _ensure(api, plural, body)
    for plural, body in wanted:
        if _makes(plural):
            changed = changed or _resized(api, plural, body, there[body["metadata"]["name"]])
    if kind == "pods":
        _delete_too_many(api, order, made.pods)
    ticket = ticket_of(order, kind, api.namespace)
    report = report_of(ticket, made.pods, list(there.values()) if kind != "pods" else ())
    problem = ("SpecChanged", changed) if changed else None
    ends = {_end_of(kind, one) for one in there.values()}
    return Outcome(report, problem, is_finished="" not in ends, is_unused=ends == {"well"})


def _makes(plural: str) -> bool:
    return plural != "services"


def _ensure(api: KubeApi, plural: str, body: Object) -> Object:
    try:
        return api.create(plural, body)
    except KubeConflict:
        # Its name has the id of the MeshJob in it: it is ours, of an earlier try.
        return body


def _ensure_secret(api: KubeApi, mesh_job: Object, order: Order) -> None:
    try:
        api.get("secrets", secret_name(order))
    except KubeMissing:
        credentials = Credentials.create(valid_for=_KEYS_LIVE_S)
        with TemporaryDirectory(prefix=".mesh-operator-") as folder:
            keys = Path(folder, "keys")
            keys.mkdir(mode=0o700)
            issuing = Order(order.id, order.spec, Path(folder), credentials)
            contents = {
                key: encoded(issuing.worker(mesh.name, "env:RANK").secret)
                for key, mesh in secret_keys(order)
            }
        contents[CONTROLLER_KEY] = encoded(packed(credentials))
        _ensure(api, "secrets", _owned(mesh_job, secret(order, contents)))


def _resized(api: KubeApi, plural: str, wanted: Object, there: Object) -> str:
    """Brings a workload to its size; says what else of it is not as it is asked for."""
    name = wanted["metadata"]["name"]
    mark = (there["metadata"].get("annotations") or {}).get(_FINGERPRINT)
    if mark != wanted["metadata"]["annotations"][_FINGERPRINT]:
        mesh = wanted["metadata"]["labels"][MESH_LABEL]
        return (
            f"mesh {mesh} is not what {plural}/{name} was made of: only hosts can change: put "
            "back what was there, or make another MeshJob"
        )
    if plural == "pods":
        return ""
    kind = next(kind for kind, known in PLURALS.items() if known == plural)
    fields = ("completions", "parallelism") if kind == "job" else ("replicas",)
    asked = int(wanted["spec"][fields[0]])
    if not _end_of(kind, there) and any(there["spec"].get(field) != asked for field in fields):
        api.patch(plural, name, {"spec": size(kind, asked)})
    return ""


def _end_of(kind: str, one: Object) -> str:
    """How a workload has ended for good: `well` or `badly`; empty when it has not."""
    phase = (one.get("status") or {}).get("phase") if kind == "pods" else ""
    if phase == "Failed" or (kind == "job" and condition(one, "Failed")):
        return "badly"
    if phase == "Succeeded" or (kind == "job" and condition(one, "Complete")):
        return "well"
    return ""


def _delete_too_many(api: KubeApi, order: Order, pods: Sequence[Object]) -> None:
    sizes: Mapping[str, int] = {mesh.name: mesh.hosts for mesh in order.spec.meshes}
    for pod in pods:
        limit = sizes.get(pod["metadata"]["labels"].get(MESH_LABEL, ""), 0)
        if rank_of("pods", pod) >= limit and not is_going(pod):
            api.delete("pods", pod["metadata"]["name"], pod["metadata"]["uid"])


def _expire(api: KubeApi, mesh_job: Object) -> None:
    lasts, ended = mesh_job["spec"].get("ttlSecondsAfterFinished"), finished_at(mesh_job)
    assert ended is not None, "only what has finished expires"
    if lasts is not None and time.time() - ended.timestamp() >= lasts:
        api.delete("meshjobs", mesh_job["metadata"]["name"], mesh_job["metadata"]["uid"])


def _tell(api: KubeApi, mesh_job: Object, secret: str, outcome: Outcome) -> None:
    status = status_of(mesh_job, secret, outcome)
    if status != mesh_job.get("status"):
        # It may be gone by now, and with it all that it was asked for.
        with suppress(KubeMissing):
            api.patch("meshjobs", f"{mesh_job['metadata']['name']}/status", {"status": status})
