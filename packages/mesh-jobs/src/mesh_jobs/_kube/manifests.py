"""The Kubernetes objects of an allocation: a workload and a service per mesh, and one secret."""

from __future__ import annotations

import re
from typing import Any

from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._kube.pod_template import secret_key, template
from mesh_jobs._kube.queue import check_queue, enqueue
from mesh_jobs._spec import MeshSpec

__all__ = [
    "ALLOCATION_LABEL",
    "BUDGETS",
    "JOB_LABEL",
    "KINDS",
    "MESH_LABEL",
    "PLURALS",
    "RANK_LABELS",
    "allocation_of",
    "budget_size",
    "manifests",
    "mesh_name",
    "secret",
    "secret_keys",
    "secret_name",
    "size",
]

ALLOCATION_LABEL = "mesh-jobs/allocation"
MESH_LABEL = "mesh-jobs/mesh"
JOB_LABEL = "mesh-jobs/job"
_RANK_LABEL = "mesh-jobs/rank"

#: The label that contains the rank of a pod, by kind of workload.
RANK_LABELS = {
    "job": "batch.kubernetes.io/job-completion-index",
    "statefulset": "apps.kubernetes.io/pod-index",
    "jobset": "batch.kubernetes.io/job-completion-index",
    "pods": _RANK_LABEL,
}

#: The plural name of each kind of workload in the API.
PLURALS = {
    "job": "jobs",
    "jobset": "jobsets",
    "statefulset": "statefulsets",
    "pods": "pods",
}

#: The plural name of disruption budgets in the API.
BUDGETS = "poddisruptionbudgets"

#: The API version and kind of the workloads, which own the other objects of an allocation.
KINDS = {
    "job": ("batch/v1", "Job"),
    "jobset": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "statefulset": ("apps/v1", "StatefulSet"),
    "pods": ("v1", "Pod"),
}

_NAME_LEN_MAX = 40
# A JobSet composes pod names from its own name, the name of a mesh, and three numbers.
_SET_NAME_LEN_MAX = 16
_ID_LEN = 8
# Lost pods count as failures, regardless of the cause: a policy that ignores evictions would not
# replace a pod on an unresponsive node before the node is removed. Failures are not counted per
# index (`backoffLimitPerIndex`), because the failed pod of an index then keeps its finalizer until
# it is replaced, and in a terminating namespace it never is: see docs/decisions/0043.
_FAILURES_OF_HOST_MAX = 20
_STAYS_S = 600.0

Object = dict[str, Any]


def secret_name(request: AllocationRequest) -> str:
    """Return the name of the allocation's Secret."""
    return f"{_short(request.spec.name)}-{request.id[:_ID_LEN]}"


def mesh_name(request: AllocationRequest, mesh: MeshSpec) -> str:
    """Return the name of a mesh's workload and service."""
    place = request.spec.meshes.index(mesh)
    return f"{_short(f'{request.spec.name}-{mesh.name}')}-{place}-{request.id[:_ID_LEN]}"


def _short(name: str) -> str:
    """Truncate a name so that suffixes of controllers fit, without a dash at its end."""
    return re.sub(r"[^a-z0-9-]", "-", name)[:_NAME_LEN_MAX].rstrip("-")


def _meta(request: AllocationRequest, name: str, mesh: MeshSpec | None = None) -> Object:
    labels = {
        "app.kubernetes.io/name": "mesh-worker",
        "app.kubernetes.io/managed-by": "mesh-jobs",
        JOB_LABEL: request.spec.name,
        ALLOCATION_LABEL: request.id,
    }
    if mesh is None:
        return {"name": name, "labels": labels}
    labels = {**(mesh.options.get("labels") or {}), **labels, MESH_LABEL: mesh.name}
    meta: Object = {"name": name, "labels": labels}
    if mesh.options.get("annotations"):
        meta["annotations"] = dict(mesh.options["annotations"])
    return meta


def secret(request: AllocationRequest, contents: dict[str, str]) -> Object:
    """Return the Secret of an allocation; `contents` are in Base64, by key."""
    meta = _meta(request, secret_name(request))
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": contents}


def manifests(request: AllocationRequest, kind: str) -> list[tuple[MeshSpec, str, Object]]:
    """Return all objects of an allocation but its Secret, each with its mesh and plural name.

    Raises:
        ConfigError: The queue of the job would not admit it as a whole.
    """
    check_queue(request, kind)
    made: list[tuple[MeshSpec, str, Object]] = []
    for mesh in request.spec.meshes:
        made.append((mesh, "services", _service(request, mesh)))
        if request.spec.options.get("evictions_max") is not None:
            made.append((mesh, BUDGETS, _disruption_budget(request, mesh)))
        made += [(mesh, PLURALS[kind], one) for one in _workloads(request, mesh, kind)]
    if kind == "jobset":
        # A JobSet contains all meshes, because they are created and deleted together.
        made.append((request.spec.meshes[0], PLURALS[kind], _job_set(request)))
    for _, plural, body in made:
        if plural == PLURALS[kind]:
            enqueue(request, kind, secret_name(request), body)
    return made


def size(kind: str, hosts: int) -> Object:
    """Return the fields of a workload's spec that determine its number of pods."""
    if kind == "job":
        return {"completions": hosts, "parallelism": hosts}
    return {"replicas": hosts}


def budget_size(request: AllocationRequest, mesh: MeshSpec) -> Object:
    """Return the field of a disruption budget's spec that depends on the size of its mesh."""
    # `maxUnavailable` requires a controller with the scale subresource, which a Job is not.
    return {"minAvailable": max(mesh.hosts - int(request.spec.options["evictions_max"]), 0)}


def allocation_of(request: AllocationRequest, kind: str, namespace: str) -> Object:
    """Return the allocation, with everything that is needed to find and report it."""
    return {
        "id": request.id,
        "namespace": namespace,
        "workload": kind,
        "meshes": [
            {
                "name": mesh.name,
                "hosts": mesh.hosts,
                "port": mesh.options["port"],
                "object": _set_name(request) if kind == "jobset" else mesh_name(request, mesh),
            }
            for mesh in request.spec.meshes
        ],
    }


def _service(request: AllocationRequest, mesh: MeshSpec) -> Object:
    """Return the headless Service that gives each pod of a mesh a DNS name."""
    port = {"name": "mesh", "port": mesh.options["port"]}
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {ALLOCATION_LABEL: request.id, MESH_LABEL: mesh.name},
        "ports": [port],
    }
    meta = _meta(request, mesh_name(request, mesh), mesh)
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def _disruption_budget(request: AllocationRequest, mesh: MeshSpec) -> Object:
    """Return the PodDisruptionBudget that limits the simultaneous evictions of a mesh."""
    spec = {
        **budget_size(request, mesh),
        "selector": {"matchLabels": {ALLOCATION_LABEL: request.id, MESH_LABEL: mesh.name}},
        # A pod whose worker is not ready has nothing to lose, and must not block a drain.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _meta(request, mesh_name(request, mesh), mesh),
        "spec": spec,
    }


def _workloads(request: AllocationRequest, mesh: MeshSpec, kind: str) -> list[Object]:
    """Return the workloads of a mesh: one Job, one StatefulSet, or the pods themselves."""
    if kind == "job":
        return [_job(request, mesh)]
    if kind == "statefulset":
        return [_stateful_set(request, mesh)]
    if kind == "jobset":
        return []
    return [_pod(request, mesh, rank) for rank in range(mesh.hosts)]


def _template(
    request: AllocationRequest, mesh: MeshSpec, kind: str, rank: Object, spec: Object
) -> Object:
    labels = _meta(request, "", mesh)["labels"]
    extra = {
        "secret": secret_name(request),
        "rank": rank,
        "spec": {"subdomain": mesh_name(request, mesh), **spec},
    }
    return template(request, mesh, labels, extra)


def _job(request: AllocationRequest, mesh: MeshSpec) -> Object:
    """Return an indexed Job, which completes when the leases of its workers expire."""
    path = f"metadata.annotations['{RANK_LABELS['job']}']"
    rank = {"valueFrom": {"fieldRef": {"fieldPath": path}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _meta(request, mesh_name(request, mesh), mesh),
        "spec": {
            "completionMode": "Indexed",
            **size("job", mesh.hosts),
            "backoffLimit": _FAILURES_OF_HOST_MAX * mesh.hosts,
            "ttlSecondsAfterFinished": int(min(request.spec.ttl_s, _STAYS_S)),
            "template": _template(request, mesh, "job", rank, {"restartPolicy": "Never"}),
        },
    }


def _set_name(request: AllocationRequest) -> str:
    name = _short(request.spec.name)[:_SET_NAME_LEN_MAX].rstrip("-")
    return f"{name}-{request.id[:_ID_LEN]}"


def _job_set(request: AllocationRequest) -> Object:
    """Return a JobSet with an indexed Job for each mesh, for gang schedulers."""
    jobs = []
    for place, mesh in enumerate(request.spec.meshes):
        job = _job(request, mesh)
        del job["spec"]["ttlSecondsAfterFinished"]
        meta = {
            key: job["metadata"][key] for key in ("labels", "annotations") if key in job["metadata"]
        }
        name = f"{_short(mesh.name)[:_SET_NAME_LEN_MAX].rstrip('-')}-{place}"
        template = {"metadata": meta, "spec": job["spec"]}
        jobs.append({"name": name, "replicas": 1, "template": template})
    # Labels and annotations for queues apply to the whole set.
    labels = {key: value for mesh in request.spec.meshes for key, value in _own(mesh, "labels")}
    notes = {key: value for mesh in request.spec.meshes for key, value in _own(mesh, "annotations")}
    meta = _meta(request, _set_name(request))
    meta["labels"] = {**labels, **meta["labels"]}
    if notes:
        meta["annotations"] = notes
    version, kind = KINDS["jobset"]
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": meta,
        "spec": {
            # The services of the meshes provide DNS names.
            "network": {"enableDNSHostnames": False},
            "successPolicy": {"operator": "All"},
            "failurePolicy": {"maxRestarts": 0},
            "ttlSecondsAfterFinished": int(min(request.spec.ttl_s, _STAYS_S)),
            "replicatedJobs": jobs,
        },
    }


def _own(mesh: MeshSpec, what: str) -> list[tuple[str, str]]:
    return list((mesh.options.get(what) or {}).items())


def _stateful_set(request: AllocationRequest, mesh: MeshSpec) -> Object:
    path = f"metadata.labels['{RANK_LABELS['statefulset']}']"
    rank = {"valueFrom": {"fieldRef": {"fieldPath": path}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _meta(request, mesh_name(request, mesh), mesh),
        "spec": {
            **size("statefulset", mesh.hosts),
            "serviceName": mesh_name(request, mesh),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {ALLOCATION_LABEL: request.id, MESH_LABEL: mesh.name}},
            "template": _template(request, mesh, "statefulset", rank, {}),
        },
    }


def _pod(request: AllocationRequest, mesh: MeshSpec, rank: int) -> Object:
    name = f"{mesh_name(request, mesh)}-{rank}"
    more = {"restartPolicy": "Never", "hostname": name}
    made = _template(request, mesh, "pods", {"value": str(rank)}, more)
    made["metadata"]["labels"][_RANK_LABEL] = str(rank)
    made["metadata"]["name"] = name
    return {"apiVersion": "v1", "kind": "Pod", **made}


def secret_keys(request: AllocationRequest) -> list[tuple[str, MeshSpec]]:
    """Return the keys of the allocation's Secret, each with its mesh."""
    return [(secret_key(mesh.name), mesh) for mesh in request.spec.meshes]
