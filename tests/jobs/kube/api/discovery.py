"""Discovery, with which clients such as kubectl query the kinds that the server has."""

from __future__ import annotations

import re
from typing import Any

from tests.jobs.kube.api.kind import Kind, Kinds, Object

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]

#: The verbs of subresources that are not only changed.
_SUBRESOURCE_VERBS = {
    "binding": ["create"],
    "eviction": ["create"],
    "log": ["get"],
    "portforward": ["create", "get"],
    "token": ["create"],
}

#: Short names that kubectl expands.
_SHORT_NAMES = {"customresourcedefinitions": ["crd", "crds"], "namespaces": ["ns"], "pods": ["po"]}

#: The binary form of a document that describes no fields: `swagger: "2.0"`. A client then leaves
#: validation to the server.
OPEN_API = b"\x0a\x032.0"


def discovered(kinds: Kinds, path: str) -> Object | None:
    """Return the answer to a discovery request, or None if the path is not one."""
    every = kinds.every()
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        groups: dict[str, list[str]] = {}
        for one in every:
            if one.group and one.version not in groups.setdefault(one.group, []):
                groups[one.group].append(one.version)
        listed = [_group(name, versions) for name, versions in groups.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    found = re.fullmatch(r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)", path)
    mine = [
        one
        for one in every
        if found and (one.group, one.version) == (found["group"] or "", found["version"])
    ]
    if not mine:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": mine[0].api_version,
        "resources": [resource for one in mine for resource in _resources(one)],
    }


def _group(name: str, versions: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(kind: Kind) -> list[dict[str, Any]]:
    plain = {
        "name": kind.plural,
        "singularName": kind.name.lower(),
        "namespaced": kind.is_namespaced,
        "kind": kind.name,
        "verbs": _VERBS,
        "shortNames": _SHORT_NAMES.get(kind.plural, []),
    }
    found = [plain]
    for name in sorted(kind.subresources):
        verbs = _SUBRESOURCE_VERBS.get(name, ["get", "patch", "update"])
        one = {**plain, "name": f"{kind.plural}/{name}", "singularName": "", "verbs": verbs}
        if name == "eviction":
            one |= {"kind": "Eviction", "group": "policy", "version": "v1"}
        found.append(one)
    return found
