"""The pod template of workers, which need no privileges and store no data."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from mesh_jobs._backend.allocation_request import AllocationRequest
from mesh_jobs._errors import JobError
from mesh_jobs._kube.options import TERMINATION_GRACE_S
from mesh_jobs._spec import MeshSpec

__all__ = ["CONTAINER", "RANK", "SECRET", "control_port", "secret_key", "template"]

#: The container of the worker; a container of this name in a pod template extends it.
CONTAINER = "worker"

#: The names of environment variables of the worker.
RANK = "MESH_RANK"
SECRET = "MESH_WORKER_SECRET"
_ADDRESS = "POD_IP"

# The part of the pod's grace period that the worker needs to stop the remaining processes.
_STOP_S = 3
# A deleted pod has not completed. With exit status 0, the Job would count its index as completed.
_TERMINATED_STATUS = 143
_READINESS = {"periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 3}
# If a worker is considered dead, everything that it runs is killed, so this takes five minutes. A
# worker that does not respond does not use its grace period either, so that it is short then.
_LIVENESS = {
    "periodSeconds": 10,
    "timeoutSeconds": 5,
    "failureThreshold": 30,
    "terminationGracePeriodSeconds": 10,
}
# How long a pod stays bound to a lost node before it is replaced. The default of Kubernetes is five
# minutes.
_LOST_S = 60
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

Object = dict[str, Any]


def secret_key(mesh: str) -> str:
    """Return the key of a mesh's worker credentials in the Secret of the allocation."""
    return f"worker.{mesh}"


def control_port(port: int) -> int:
    """Return the port of the control service of a worker that listens on the given port."""
    return port + 1


def _health_port(port: int) -> int:
    """Return the port of the unauthenticated health service, which the kubelet probes."""
    return port + 2


def template(
    request: AllocationRequest, mesh: MeshSpec, labels: Mapping[str, str], extra: Object
) -> Object:
    """Return the template of a mesh's pods: that of the user, extended by the worker.

    Args:
        request: The allocation request.
        mesh: The mesh.
        labels: The labels by which the pods are found.
        extra: `rank`, the source of the worker's rank; `secret`, the name of the Secret; `spec`,
            the fields that the workload requires in the spec of the pod.

    Raises:
        JobError: No image is given.
    """
    options = mesh.options
    given = copy.deepcopy(dict(options.get("pod_template") or {}))
    meta, spec = given.get("metadata") or {}, given.get("spec") or {}
    containers = spec.get("containers") or []
    own: Object = next((one for one in containers if one.get("name") == CONTAINER), {})
    others = [one for one in containers if one.get("name") != CONTAINER]
    grace_s = spec.get("terminationGracePeriodSeconds") or request.spec.options.get(
        "termination_grace_s", TERMINATION_GRACE_S
    )
    worker = _container(request, mesh, own, extra, max(0, grace_s - _STOP_S))
    meta["labels"] = {**(meta.get("labels") or {}), **(options.get("labels") or {}), **labels}
    notes = {**(meta.get("annotations") or {}), **(options.get("annotations") or {})}
    if notes:
        meta["annotations"] = notes
    image = options.get("image_spec") or {}
    filled = {
        "enableServiceLinks": False,
        "automountServiceAccountToken": bool(spec.get("serviceAccountName")),
        **spec,
        **extra["spec"],
        "terminationGracePeriodSeconds": grace_s,
        "securityContext": {**_security(image), **(spec.get("securityContext") or {})},
        "containers": [worker, *others],
        "tolerations": _tolerations(
            [*(spec.get("tolerations") or []), *_list(mesh, "tolerations")]
        ),
        "volumes": [*(spec.get("volumes") or []), *_shared_memory(image)],
    }
    if selector := {**(spec.get("nodeSelector") or {}), **(options.get("node_selector") or {})}:
        filled["nodeSelector"] = selector
    if image.get("pull_secrets"):
        filled["imagePullSecrets"] = [{"name": name} for name in image["pull_secrets"]]
    return {"metadata": meta, "spec": filled}


def _list(mesh: MeshSpec, name: str) -> list[Any]:
    return list(mesh.options.get(name) or [])


def _container(
    request: AllocationRequest, mesh: MeshSpec, own: Object, extra: Object, leave_grace_s: int
) -> Object:
    image, port = mesh.options.get("image_spec") or {}, mesh.options["port"]
    name = image.get("image") or own.get("image")
    if not name:
        raise JobError(
            f"mesh {mesh.name!r} has no image: give image_spec, or a pod_template in PodOptions "
            f"with a container {CONTAINER!r} that has one"
        )
    command = request.worker(
        mesh.name,
        f"env:{RANK}",
        python=image.get("python", "python"),
        listen=f"tcp://env:{_ADDRESS}:{port}",
        report=None,
        secret=f"env:{SECRET}",
    )
    key = {"name": extra["secret"], "key": secret_key(mesh.name)}
    plain = {"PYTHONUNBUFFERED": "1", **command.env, **(image.get("env") or {})}
    env = [
        {"name": _ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": RANK, **extra["rank"]},
        {"name": SECRET, "valueFrom": {"secretKeyRef": key}},
        *({"name": name, "value": value} for name, value in plain.items()),
        *(own.get("env") or []),
    ]
    health = {"grpc": {"port": _health_port(port)}}
    own_ports = [
        "--control-port",
        str(control_port(port)),
        "--health-port",
        str(_health_port(port)),
        "--leave-grace",
        str(leave_grace_s),
    ]
    filled = {
        "readinessProbe": {**health, **_READINESS},
        "livenessProbe": {**health, **_LIVENESS},
        **own,
        "name": CONTAINER,
        "image": name,
        "command": [*command.argv, *own_ports, "--termination-status", str(_TERMINATED_STATUS)],
        "env": env,
        "ports": [
            *(own.get("ports") or []),
            {"name": "mesh", "containerPort": port},
            {"name": "mesh-control", "containerPort": control_port(port)},
            {"name": "mesh-health", "containerPort": _health_port(port)},
        ],
        "resources": _resources(mesh, own.get("resources") or {}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **(own.get("securityContext") or {}),
        },
        "volumeMounts": [
            *(own.get("volumeMounts") or []),
            *({"name": one["name"], "mountPath": "/dev/shm"} for one in _shared_memory(image)),
        ],
    }
    if image.get("pull_policy"):
        filled["imagePullPolicy"] = image["pull_policy"]
    return filled


def _resources(mesh: MeshSpec, own: Object) -> Object:
    """Return the resources of the worker, with equal requests and limits."""
    requested = dict((mesh.options.get("image_spec") or {}).get("resources") or {})
    if mesh.cpus is not None:
        requested["cpu"] = mesh.cpus
    if mesh.memory is not None:
        requested["memory"] = mesh.memory
    if mesh.gpus:
        requested[mesh.options.get("gpu_resource") or "nvidia.com/gpu"] = mesh.gpus
    if not requested:
        return own
    requested = {name: str(amount) for name, amount in requested.items()}
    return {
        **own,
        "requests": {**(own.get("requests") or {}), **requested},
        "limits": {**(own.get("limits") or {}), **requested},
    }


def _security(image: Object) -> Object:
    """Return the security context that the restricted profile requires."""
    security: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    user = image.get("run_as_user", 1000)
    if user is not None:
        security |= {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return security


def _tolerations(given: list[Object]) -> list[Object]:
    known = {one.get("key") for one in given}
    lost = [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _LOST_S,
        }
        for key in _LOST
        if key not in known
    ]
    return [*given, *lost]


def _shared_memory(image: Object) -> list[Object]:
    """Return the volume for shared memory; the default of 64 MB per container is too small.

    `kubectl drain` refuses to evict a pod with such a volume without a flag, so a user can do
    without it: see docs/decisions/0045.
    """
    size = image.get("shared_memory")
    if size == "0":
        return []
    limit = {"sizeLimit": size} if size else {}
    return [{"name": "shared-memory", "emptyDir": {"medium": "Memory", **limit}}]
