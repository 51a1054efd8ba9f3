"""The rights that a job needs in its namespace, and no more."""

from __future__ import annotations

__all__ = ["role", "rules"]

_MADE_OF = {"job": ("batch", "jobs"), "statefulset": ("apps", "statefulsets")}

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
    """Gives the rules of a role that makes meshes of a kind of workload."""
    made = ["create", "delete", "get", "list", "patch"]
    pods = ["delete", "get", "list"]
    group, plural = _MADE_OF.get(workload, ("", ""))
    wanted = [
        ("", "secrets", made),
        ("", "services", ["create", "delete", "list", "patch"]),
        ("", "pods/log", ["get"]),
        ("", "pods", pods if plural else ["create", *pods]),
    ]
    if plural:
        wanted.append((group, plural, ["create", "delete", "list", "patch"]))
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": verbs}
        for group, resource, verbs in wanted
    ]


def role(namespace: str, workload: str) -> str:
    """Gives the role as YAML; bind it to whoever applies jobs."""
    text = _ROLE.format(namespace=namespace)
    for rule in rules(workload):
        verbs = ", ".join(f'"{verb}"' for verb in rule["verbs"])
        text += _RULE.format(group=rule["apiGroups"][0], resource=rule["resources"][0], verbs=verbs)
    return text
