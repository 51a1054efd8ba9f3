"""The meaning of an API request, parsed from its HTTP method and path."""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from typing import Any

from tests.jobs.kube.api.kind import Kind, Kinds
from tests.jobs.kube.api.refusal import Refusal

_PATH = re.compile(
    r"^/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?$"
)
_SUBRESOURCES_OF_NAMESPACES = {"status", "finalize"}


@dataclass(frozen=True)
class Request:
    """A request: a verb, a kind, and the objects of the kind that it refers to."""

    verb: str
    kind: Kind
    namespace: str
    name: str
    subresource: str
    query: dict[str, str]
    body: Any = None
    content_type: str = ""

    @property
    def is_dry_run(self) -> bool:
        asked = self.query.get("dryRun")
        if isinstance(self.body, dict) and self.verb == "delete":
            asked = (self.body.get("dryRun") or [asked])[0]
        return asked == "All"

    def flag(self, name: str) -> bool:
        return self.query.get(name, "") in ("1", "true", "True")


def read(kinds: Kinds, method: str, target: str, body: Any, content_type: str) -> Request:
    """Parse a request.

    Raises:
        Refusal: The server has no such path.
    """
    url = urllib.parse.urlsplit(target)
    query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
    found = _PATH.match(url.path.rstrip("/"))
    if found is None:
        raise Refusal(404, "the server could not find the requested resource", "NotFound")
    group, version, namespace, plural, name, subresource = (
        found["group"] or "",
        found["version"],
        found["namespace"] or "",
        found["plural"],
        found["name"] or "",
        found["subresource"] or "",
    )
    if namespace and plural in _SUBRESOURCES_OF_NAMESPACES and not name:
        namespace, plural, name, subresource = "", "namespaces", namespace, plural
    kind = kinds.find(group, version, plural)
    is_known = kind is not None and (not subresource or subresource in kind.subresources)
    if kind is None or not is_known or (kind.is_namespaced and name and not namespace):
        raise Refusal(404, "the server could not find the requested resource", "NotFound")
    verb = _verb(method, name, subresource, query)
    return Request(verb, kind, namespace, name, subresource, query, body, content_type)


def _verb(method: str, name: str, subresource: str, query: dict[str, str]) -> str:
    match method:
        case "GET" if name:
            return "get"
        case "GET":
            return "watch" if query.get("watch") in ("1", "true", "True") else "list"
        case "POST" if not name or subresource:
            return "create"
        case "PUT" if name:
            return "update"
        case "PATCH" if name:
            return "patch"
        case "DELETE":
            return "delete" if name else "deletecollection"
        case _:
            raise Refusal(405, "the server does not allow this method on the requested resource")
