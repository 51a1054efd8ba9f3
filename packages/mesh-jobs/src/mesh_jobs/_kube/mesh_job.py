"""The custom resource MeshJob: its definition, its spec and its status."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from mesh_core import ConfigError
from mesh_jobs._backend.report import HostReport, Phase, Report
from mesh_jobs._kube.image_spec import ImageSpec
from mesh_jobs._kube.options import TERMINATION_GRACE_S
from mesh_jobs._spec import JobSpec, MeshSpec

__all__ = [
    "MESH_JOB_LABEL",
    "ReconcileResult",
    "allocation_id",
    "crd",
    "fingerprints",
    "finished_at",
    "job_spec",
    "status_of",
]

#: The label of all objects that an operator creates; its value is the name of the MeshJob.
MESH_JOB_LABEL = "mesh-jobs/mesh-job"

_REASON = re.compile(r": ([A-Z][A-Za-z]+)\b")
_MESSAGE_LEN_MAX = 1024

#: The fields of a mesh apart from its name and size, with their defaults.
_DEFAULTS: Mapping[str, Any] = {
    "image": "",
    "python": "python",
    "env": {},
    "pullSecrets": [],
    "pullPolicy": None,
    "sharedMemory": None,
    "runAsUser": 1000,
    "resources": {},
    "port": 26600,
    "labels": {},
    "annotations": {},
    "nodeSelector": {},
    "tolerations": [],
    "podTemplate": None,
}

Object = dict[str, Any]


@cache
def crd() -> str:
    """Return the custom resource definition as YAML."""
    return files("mesh_jobs._kube").joinpath("mesh_job_crd.yaml").read_text()


def allocation_id(mesh_job: Object) -> str:
    """Return the allocation id of a MeshJob, which never changes."""
    return str(mesh_job["metadata"]["uid"]).replace("-", "")


def job_spec(mesh_job: Object) -> JobSpec:
    """Return the job spec that a MeshJob describes.

    Raises:
        ConfigError: A name or a number is invalid.
    """
    spec, name = mesh_job["spec"], mesh_job["metadata"]["name"]
    meshes = tuple(_mesh(one, name) for one in spec["meshes"])
    options = {
        "namespace": mesh_job["metadata"]["namespace"],
        "workload": _workload(spec),
        "termination_grace_s": _termination_grace_s(spec),
    }
    return JobSpec(name, "kubernetes", meshes, options, float(spec.get("ttlSeconds", 3600)))


def _workload(spec: Object) -> str:
    return str(spec.get("workload", "job"))


def _termination_grace_s(spec: Object) -> int:
    return int(spec.get("terminationGracePeriodSeconds", TERMINATION_GRACE_S))


def _mesh(mesh: Object, mesh_job: str) -> MeshSpec:
    for resource, amount in (mesh.get("resources") or {}).items():
        if isinstance(amount, bool) or not isinstance(amount, (str, int, float)):
            raise ConfigError(
                f"resource {resource!r} of mesh {mesh['name']!r} is {amount!r}: give a quantity "
                "such as 0.5, 8 or 32Gi"
            )
    image = ImageSpec(
        mesh.get("image", ""),
        mesh.get("resources"),
        python=mesh.get("python", "python"),
        env=mesh.get("env") or {},
        pull_secrets=mesh.get("pullSecrets") or (),
        pull_policy=mesh.get("pullPolicy"),
        shared_memory=mesh.get("sharedMemory"),
        run_as_user=mesh.get("runAsUser", 1000) or None,
    )
    options = {
        "image_spec": image.to_json(),
        "port": mesh.get("port", 26600),
        "pod_template": mesh.get("podTemplate"),
        "labels": {**(mesh.get("labels") or {}), MESH_JOB_LABEL: mesh_job},
        "annotations": mesh.get("annotations") or {},
        "node_selector": mesh.get("nodeSelector") or {},
        "tolerations": mesh.get("tolerations") or [],
    }
    return MeshSpec(mesh["name"], mesh["hosts"], options=options)


def fingerprints(mesh_job: Object) -> dict[str, str]:
    """Return a hash of each mesh that covers all fields except its size.

    The hash is stored on the objects of the mesh. It covers the fields that this operator knows and
    that differ from their defaults. It is therefore the same before and after an upgrade of the
    definition that adds fields with defaults, whether the cluster has added them or not.
    """
    spec = mesh_job["spec"]
    found = {}
    for mesh in spec["meshes"]:
        kept = {
            key: mesh[key] for key in _DEFAULTS if mesh.get(key, _DEFAULTS[key]) != _DEFAULTS[key]
        }
        whole = [_workload(spec), spec.get("ttlSeconds", 3600), mesh["name"], kept]
        if _termination_grace_s(spec) != TERMINATION_GRACE_S:
            whole.append(_termination_grace_s(spec))
        text = json.dumps(whole, sort_keys=True).encode()
        found[mesh["name"]] = hashlib.sha256(text).hexdigest()[:16]
    return found


def finished_at(mesh_job: Object) -> datetime | None:
    """Return when all hosts of a MeshJob had ended; None if they have not."""
    finished = (mesh_job.get("status") or {}).get("finishedAt")
    return None if finished is None else datetime.fromisoformat(finished)


@dataclass(frozen=True)
class ReconcileResult:
    """The result of reconciling a MeshJob.

    Attributes:
        report: The report on the hosts; None if there cannot be any.
        problem: The reason and the message, if the MeshJob cannot be reconciled to its spec.
        is_finished: Whether nothing of it runs or can start anymore.
        is_unused: Whether it finished because no program used it, which is a normal end.
    """

    report: Report | None
    problem: tuple[str, str] | None = None
    is_finished: bool = False
    is_unused: bool = False


def status_of(mesh_job: Object, secret: str, result: ReconcileResult) -> Object:
    """Return the status of a MeshJob; unchanged conditions keep their transition time."""
    old, generation = mesh_job.get("status") or {}, mesh_job["metadata"]["generation"]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    before = {one["type"]: one for one in old.get("conditions") or []}
    hosts = result.report.hosts if result.report is not None else ()
    conditions = []
    for type, (is_true, reason, message) in _conditions(result, hosts).items():
        found = {
            "type": type,
            "status": str(is_true),
            "reason": reason,
            "message": message[:_MESSAGE_LEN_MAX],
            "observedGeneration": generation,
            "lastTransitionTime": now,
        }
        if before.get(type, {}).get("status") == found["status"]:
            found["lastTransitionTime"] = before[type]["lastTransitionTime"]
        conditions.append(found)
    status: Object = {
        "observedGeneration": generation,
        "allocation": allocation_id(mesh_job),
        "secret": secret,
        "hosts": sum(int(mesh["hosts"]) for mesh in mesh_job["spec"]["meshes"]),
        "up": sum(host.is_up for host in hosts),
        "meshes": [_mesh_status(mesh, hosts) for mesh in mesh_job["spec"]["meshes"]],
        "conditions": conditions,
    }
    if result.is_finished:
        status["finishedAt"] = old.get("finishedAt") or now
    return status


def _mesh_status(mesh: Mapping[str, Any], hosts: Sequence[HostReport]) -> Object:
    up = sum(host.is_up for host in hosts if host.mesh == mesh["name"])
    return {
        "name": mesh["name"],
        "hosts": mesh["hosts"],
        "up": up,
        "port": mesh.get("port", 26600),
    }


def _conditions(
    result: ReconcileResult, hosts: Sequence[HostReport]
) -> dict[str, tuple[bool, str, str]]:
    lost = [host for host in hosts if host.state is Phase.ENDED]
    waits = [host for host in hosts if host.state is Phase.PENDING]
    is_ready = bool(hosts) and all(host.is_up for host in hosts)
    ready = (is_ready, "AllHostsUp", "") if is_ready else (False, *_why([*lost, *waits]))
    failed = (True, *_why(lost)) if lost else (False, "NoHostFailed", "")
    if result.is_unused:
        failed = (False, "Unused", "no program used its workers for ttlSeconds")
    if result.problem is not None:
        failed = (True, *result.problem) if not is_ready else failed
        ready = ready if hosts else (False, *result.problem)
        return {"Ready": ready, "Progressing": (False, *result.problem), "Failed": failed}
    if result.is_finished:
        progressing = (False, "Finished", "")
    elif waits:
        progressing = (True, *_why(waits))
    else:
        progressing = (False, "AllHostsUp" if is_ready else "HostsFailed", "")
    return {"Ready": ready, "Progressing": progressing, "Failed": failed}


def _why(hosts: Sequence[HostReport]) -> tuple[str, str]:
    """Return the scheduler's reason as one word, and its message."""
    reason = next((host.reason for host in hosts if host.reason), "")
    found = _REASON.search(reason)
    return (found[1] if found else "HostsNotUp"), reason
