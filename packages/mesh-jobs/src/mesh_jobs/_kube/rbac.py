"""The role with the least privileges that a job needs in its namespace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mesh_core import ConfigError

__all__ = ["role"]

_Rule = tuple[str, str, list[str]]

_MADE_OF = {
    "job": ("batch", "jobs"),
    "jobset": ("jobset.x-k8s.io", "jobsets"),
    "statefulset": ("apps", "statefulsets"),
}

_ATTACHED: list[_Rule] = [
    ("", "secrets", ["get"]),
    ("", "pods/log", ["get"]),
    ("", "events", ["list"]),
    ("", "pods", ["list", "watch"]),
    ("mesh-jobs.dev", "meshjobs", ["get", "list", "patch", "watch"]),
]

_ROLE = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: mesh-jobs
  namespace: {namespace}
rules:
"""

# Nodes belong to no namespace, so a Role cannot grant this permission.
_NODES_ROLE = """\
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: mesh-jobs-nodes
rules:
"""

_NODES = ("", "nodes", ["list", "watch"])
_BUDGETS = ("policy", "poddisruptionbudgets", ["create", "delete", "list", "patch"])
_FORWARDING = ("", "pods/portforward", ["create", "get"])

_RULE = """\
  - apiGroups: ["{group}"]
    resources: ["{resource}"]
    verbs: [{verbs}]
"""


def _rules(options: Mapping[str, Any]) -> list[_Rule]:
    """Return the permissions that a job with these options needs in its namespace."""
    if options["mesh_job"] or options["credentials_secret"]:
        return _ATTACHED  # Existing pods are only read.
    workload = str(options["workload"])
    made = ["create", "delete", "get", "list", "patch"]
    pods = ["delete", "list", "watch"]
    group, plural = _MADE_OF.get(workload, ("", ""))
    wanted: list[_Rule] = [
        ("", "secrets", made),
        ("", "services", ["create", "delete", "list", "patch"]),
        ("", "pods/log", ["get"]),
        ("", "events", ["list"]),
        ("", "pods", pods if plural else ["create", *pods]),
    ]
    if plural:
        wanted.append((group, plural, ["create", "delete", "list", "patch", "watch"]))
    if options["evictions_max"] is not None:
        wanted.append(_BUDGETS)
    return wanted


def _text(rule: _Rule) -> str:
    group, resource, verbs = rule
    quoted = ", ".join(f'"{verb}"' for verb in verbs)
    return _RULE.format(group=group, resource=resource, verbs=quoted)


_BINDING = """\
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: mesh-jobs
  namespace: {namespace}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: mesh-jobs}}
subjects:
  - {subject}
"""

_NODES_BINDING = """\
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: mesh-jobs-nodes-{suffix}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: mesh-jobs-nodes}}
subjects:
  - {subject}
"""

# How kubectl names the kinds of subjects.
_SUBJECTS = {
    "user": "{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {name}}}",
    "group": "{{apiGroup: rbac.authorization.k8s.io, kind: Group, name: {name}}}",
    "serviceaccount": "{{kind: ServiceAccount, name: {name}, namespace: {namespace}}}",
}


def role(options: Mapping[str, Any], subject: str | None = None) -> str:
    """Return the role as YAML, and the binding to a subject if one is given.

    Args:
        options: The options of the job.
        subject: To whom the role is bound.

    Raises:
        ConfigError: The subject has another form than `user:NAME`.
    """
    namespace, watches_nodes = str(options["namespace"]), bool(options["watch_nodes"])
    text = _ROLE.format(namespace=namespace)
    for rule in [*_rules(options), *([_FORWARDING] if options["port_forward"] else [])]:
        text += _text(rule)
    if watches_nodes:
        text += _NODES_ROLE + _text(_NODES)
    if subject is None:
        return text
    kind, _, name = subject.partition(":")
    if kind not in _SUBJECTS or not name:
        raise ConfigError(f"subject {subject!r}: use user:NAME, group:NAME or serviceaccount:NAME")
    # A quoted name is valid YAML, regardless of its characters.
    named = _SUBJECTS[kind].format(name=json.dumps(name), namespace=namespace)
    text += _BINDING.format(namespace=namespace, subject=named)
    # Several namespaces may bind the same cluster role.
    return text + _NODES_BINDING.format(suffix=namespace, subject=named) if watches_nodes else text
