"""The role with the least privileges that a job needs in its namespace."""

from __future__ import annotations

import json

from mesh_core import ConfigError

__all__ = ["role", "rules"]

_MADE_OF = {
    "job": ("batch", "jobs"),
    "jobset": ("jobset.x-k8s.io", "jobsets"),
    "statefulset": ("apps", "statefulsets"),
}

_ATTACHED = [
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

_RULE = """\
  - apiGroups: ["{group}"]
    resources: ["{resource}"]
    verbs: [{verbs}]
"""


def rules(workload: str) -> list[dict[str, list[str]]]:
    """Return the rules of a role that creates meshes of a kind of workload."""
    if workload == "attached":
        # Existing pods are only read.
        return [
            {"apiGroups": [group], "resources": [resource], "verbs": verbs}
            for group, resource, verbs in _ATTACHED
        ]
    made = ["create", "delete", "get", "list", "patch"]
    pods = ["delete", "list", "watch"]
    group, plural = _MADE_OF.get(workload, ("", ""))
    wanted = [
        ("", "secrets", made),
        ("", "services", ["create", "delete", "list", "patch"]),
        ("", "pods/log", ["get"]),
        ("", "events", ["list"]),
        ("", "pods", pods if plural else ["create", *pods]),
    ]
    if plural:
        wanted.append((group, plural, ["create", "delete", "list", "patch", "watch"]))
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": verbs}
        for group, resource, verbs in wanted
    ]


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

# How kubectl names the kinds of subjects.
_SUBJECTS = {
    "user": "{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {name}}}",
    "group": "{{apiGroup: rbac.authorization.k8s.io, kind: Group, name: {name}}}",
    "serviceaccount": "{{kind: ServiceAccount, name: {name}, namespace: {namespace}}}",
}


def role(
    namespace: str, workload: str, is_forwarding: bool = False, subject: str | None = None
) -> str:
    """Return the role as YAML, and the binding to a subject if one is given.

    Raises:
        ConfigError: The subject has another form than `user:NAME`.
    """
    text = _ROLE.format(namespace=namespace)
    forwarding = {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create", "get"]}
    for rule in [*rules(workload), *([forwarding] if is_forwarding else [])]:
        verbs = ", ".join(f'"{verb}"' for verb in rule["verbs"])
        text += _RULE.format(group=rule["apiGroups"][0], resource=rule["resources"][0], verbs=verbs)
    if subject is None:
        return text
    kind, _, name = subject.partition(":")
    if kind not in _SUBJECTS or not name:
        raise ConfigError(f"subject {subject!r}: use user:NAME, group:NAME or serviceaccount:NAME")
    # A quoted name is valid YAML, whatever it contains.
    named = _SUBJECTS[kind].format(name=json.dumps(name), namespace=namespace)
    return text + _BINDING.format(namespace=namespace, subject=named)
