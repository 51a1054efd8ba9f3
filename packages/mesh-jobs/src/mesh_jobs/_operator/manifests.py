"""The manifests of the operator: the custom resource definition, its roles and its Deployment."""

from __future__ import annotations

from typing import Any

import yaml

from mesh_jobs._kube.mesh_job import crd
from mesh_jobs._kube_api.client import CRD_GROUP

__all__ = ["operator_manifests", "operator_rules"]

_NAME = "mesh-operator"
_RBAC = "rbac.authorization.k8s.io"

Object = dict[str, Any]


def operator_rules() -> list[Object]:
    """Return the minimal permissions of the operator in the namespaces of its MeshJobs."""
    workload = ["create", "list", "patch", "watch"]
    wanted = [
        (CRD_GROUP, "meshjobs", ["delete", "list", "watch"]),
        (CRD_GROUP, "meshjobs/status", ["patch"]),
        # Some clusters require this permission to set owner references that block deletion.
        (CRD_GROUP, "meshjobs/finalizers", ["update"]),
        ("", "secrets", ["create", "get"]),
        ("", "services", ["create"]),
        ("", "pods", ["create", "delete", "list", "watch"]),
        ("batch", "jobs", workload),
        ("apps", "statefulsets", workload),
    ]
    return [_rule(*one) for one in wanted]


def lease_rules() -> list[Object]:
    """Return the permissions for leader election, in the namespace of the Lease."""
    return [_rule("coordination.k8s.io", "leases", ["create", "get", "update"])]


def _rule(group: str, resource: str, verbs: list[str]) -> Object:
    return {"apiGroups": [group], "resources": [resource], "verbs": verbs}


def operator_manifests(namespace: str, image: str, *, is_cluster_wide: bool) -> str:
    """Return all manifests as YAML, for an administrator to apply.

    Args:
        namespace: The namespace of the operator.
        image: An image in which `torchmesh-jobs[kubernetes]` is installed.
        is_cluster_wide: Whether the operator manages MeshJobs of all namespaces, or only of its
            own.
    """
    meta: Object = {"name": _NAME, "namespace": namespace}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    own = lease_rules() if is_cluster_wide else [*operator_rules(), *lease_rules()]
    made = [account, *_role("Role", meta, own, meta), *_user_roles()]
    if is_cluster_wide:
        made += _role("ClusterRole", {"name": _NAME}, operator_rules(), meta)
    made.append(_deployment(meta, image, is_cluster_wide))
    first = "".join(f"{yaml.safe_dump(one, sort_keys=False)}---\n" for one in _namespace(namespace))
    rest = "".join(f"---\n{yaml.safe_dump(one, sort_keys=False)}" for one in made)
    return first + crd() + rest


def _namespace(name: str) -> list[Object]:
    """Return the namespace that must exist before the other objects."""
    if name == "default":
        return []
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}]


def _user_roles() -> list[Object]:
    """Return cluster roles that let the standard roles of a cluster manage or see MeshJobs."""
    read, write = ["get", "list", "watch"], ["create", "delete", "patch", "update"]
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {
                "name": f"mesh-jobs-{suffix}",
                "labels": {f"{_RBAC}/aggregate-to-{role}": "true" for role in roles},
            },
            "rules": [_rule(CRD_GROUP, "meshjobs", verbs)],
        }
        for suffix, roles, verbs in (
            ("view", ("view", "edit", "admin"), read),
            ("edit", ("edit", "admin"), [*write, *read]),
        )
    ]


def _role(kind: str, meta: Object, rules: list[Object], account: Object) -> list[Object]:
    subject = {"kind": "ServiceAccount", **account}
    named = {"apiVersion": f"{_RBAC}/v1", "metadata": dict(meta)}
    return [
        {**named, "kind": kind, "rules": rules},
        {
            **named,
            "kind": f"{kind}Binding",
            "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": _NAME},
            "subjects": [subject],
        },
    ]


def _deployment(meta: Object, image: str, is_cluster_wide: bool) -> Object:
    labels = {"app.kubernetes.io/name": _NAME}
    where = ["--namespace", meta["namespace"], *(["--all-namespaces"] if is_cluster_wide else [])]
    container = {
        "name": "operator",
        "image": image,
        "command": ["python", "-m", "mesh_jobs.operator", *where],
        "resources": {
            "requests": {"cpu": "100m", "memory": "128Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        # Credentials are created as temporary files. This memory is writable in every container,
        # whereas `kubectl drain` refuses to evict a pod with a volume for them.
        "env": [{"name": "TMPDIR", "value": "/dev/shm"}],
    }
    pod = {
        "serviceAccountName": _NAME,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": dict(meta),
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
