"""The kinds of objects that the API serves, including kinds of custom resource definitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of object: its API paths and the supported operations."""

    group: str
    version: str
    plural: str
    name: str
    is_namespaced: bool = True
    subresources: frozenset[str] = field(default_factory=frozenset)
    #: The schema of a custom resource.
    schema: Object | None = field(default=None, compare=False)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The plural with its group, as it appears in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _kind(
    path: str, name: str, *subresources: str, is_namespaced: bool = True, group: str = ""
) -> Kind:
    version, plural = path.split("/")
    return Kind(group, version, plural, name, is_namespaced, frozenset(subresources))


_RBAC = "rbac.authorization.k8s.io"

BUILT_IN = (
    _kind("v1/namespaces", "Namespace", "status", is_namespaced=False),
    _kind("v1/nodes", "Node", "status", is_namespaced=False),
    _kind("v1/pods", "Pod", "status", "log", "binding", "eviction", "portforward"),
    _kind("v1/services", "Service", "status"),
    _kind("v1/secrets", "Secret"),
    _kind("v1/configmaps", "ConfigMap"),
    _kind("v1/events", "Event"),
    _kind("v1/serviceaccounts", "ServiceAccount", "token"),
    _kind("v1/statefulsets", "StatefulSet", "status", "scale", group="apps"),
    _kind("v1/deployments", "Deployment", "status", "scale", group="apps"),
    _kind("v1/jobs", "Job", "status", group="batch"),
    _kind("v1/poddisruptionbudgets", "PodDisruptionBudget", "status", group="policy"),
    _kind("v1/priorityclasses", "PriorityClass", is_namespaced=False, group="scheduling.k8s.io"),
    _kind("v1/leases", "Lease", group="coordination.k8s.io"),
    _kind("v1/clusterroles", "ClusterRole", group=_RBAC, is_namespaced=False),
    _kind("v1/clusterrolebindings", "ClusterRoleBinding", group=_RBAC, is_namespaced=False),
    _kind("v1/roles", "Role", group=_RBAC),
    _kind("v1/rolebindings", "RoleBinding", group=_RBAC),
    _kind(
        "v1/customresourcedefinitions",
        "CustomResourceDefinition",
        "status",
        is_namespaced=False,
        group="apiextensions.k8s.io",
    ),
)


class Kinds:
    """All current kinds: built-in ones, and kinds of custom resource definitions."""

    def __init__(self) -> None:
        self._all = {(one.group, one.version, one.plural): one for one in BUILT_IN}

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        return self._all.get((group, version, plural))

    def named(self, api_version: str, name: str) -> Kind | None:
        """Return the kind with this `apiVersion` and `kind`, as in an owner reference."""
        for one in self._all.values():
            if (one.api_version, one.name) == (api_version, name):
                return one
        return None

    def every(self) -> list[Kind]:
        return list(self._all.values())

    def define(self, definition: Object) -> None:
        """Serve the kinds of a CustomResourceDefinition."""
        spec = definition["spec"]
        for version in spec["versions"]:
            one = Kind(
                spec["group"],
                version["name"],
                spec["names"]["plural"],
                spec["names"]["kind"],
                spec["scope"] == "Namespaced",
                frozenset(version.get("subresources", {})),
                (version.get("schema") or {}).get("openAPIV3Schema"),
            )
            self._all[one.group, one.version, one.plural] = one

    def forget(self, definition: Object) -> None:
        """Stop serving the kinds of a CustomResourceDefinition."""
        spec = definition["spec"]
        for version in spec["versions"]:
            self._all.pop((spec["group"], version["name"], spec["names"]["plural"]), None)
