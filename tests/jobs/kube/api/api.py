"""The verbs of the API, applied to the objects in the store."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable

from tests.jobs.kube.api import (
    defaults,
    deletion,
    eviction,
    kueue,
    pod_security,
    schema,
    validation,
)
from tests.jobs.kube.api.kind import Kind, Kinds, Object
from tests.jobs.kube.api.patch import patched
from tests.jobs.kube.api.permissions import Permissions
from tests.jobs.kube.api.priority import set_priority
from tests.jobs.kube.api.refusal import Refusal, not_found
from tests.jobs.kube.api.request import Request
from tests.jobs.kube.api.selector import Choice, by_field, by_label
from tests.jobs.kube.api.store import Store, copied

#: Kinds whose status can be changed only through the status subresource.
_WITH_STATUS = {
    "Deployment",
    "Job",
    "Namespace",
    "Node",
    "Pod",
    "PodDisruptionBudget",
    "Service",
    "StatefulSet",
}

#: The audience of a token if the request does not specify one.
AUDIENCE = "https://kubernetes.default.svc"

Answer = tuple[int, Object | str]


class Api:
    """Handles requests of authenticated users, independent of the transport."""

    def __init__(self, store: Store, kinds: Kinds, permissions: Permissions) -> None:
        self.store = store
        self.kinds = kinds
        self.permissions = permissions
        #: Reads the log of a container. The component that runs the pods sets it.
        self.read_log: Callable[[Object, str, bool], str | None] = lambda *_: None

    def answer(self, request: Request) -> Answer:
        """Handle a request of any verb except watch.

        Raises:
            Refusal: The request is rejected.
        """
        match request.verb, request.subresource:
            case "get", "log":
                return 200, self._log(request)
            case "get", "scale":
                return 200, _scale(self._one(request))
            case "get", _:
                return 200, self._one(request)
            case "list", _:
                return 200, self._list(request)
            case "create", "binding":
                return 201, self._bind(request)
            case "create", "token":
                return 201, self._token(request)
            case "create", "eviction":
                return 201, self._evict(request)
            case "create", "":
                return 201, self._create(request)
            case "update" | "patch", _:
                return 200, self._change(request)
            case "delete", "":
                return 200, self._delete(request)
            case "deletecollection", "":
                for one in self._chosen(request):
                    options = request.body
                    deletion.delete(self.store, self.kinds, request.kind, copied(one), options)
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            case _:
                raise Refusal(405, "the server does not allow this method")

    def choice(self, request: Request) -> Choice:
        """Return a predicate that implements the namespace and selectors of a list or watch."""
        labels = by_label(request.query.get("labelSelector", ""))
        fields = by_field(request.kind.name, request.query.get("fieldSelector", ""))

        def chosen(object: Object) -> bool:
            where = object["metadata"].get("namespace", "")
            return request.namespace in ("", where) and labels(object) and fields(object)

        return chosen

    def _one(self, request: Request) -> Object:
        return self.store.get(request.kind, request.namespace, request.name)

    def _chosen(self, request: Request) -> list[Object]:
        """Return the stored objects of a list, which must not be modified."""
        chosen = self.choice(request)
        return [one for one in self.store.view(request.kind, request.namespace) if chosen(one)]

    def _list(self, request: Request) -> Object:
        with self.store.changed:
            version = self.store.version
            items = self._chosen(request)
        wanted = request.query.get("resourceVersion", "")
        if wanted.isdigit() and int(wanted) > version:
            raise too_large(int(wanted), version)
        own = ("apiVersion", "kind")
        return {
            "kind": f"{request.kind.name}List",
            "apiVersion": request.kind.api_version,
            "metadata": {"resourceVersion": str(version)},
            "items": [
                {key: value for key, value in one.items() if key not in own} for one in items
            ],
        }

    def _create(self, request: Request) -> Object:
        kind, object = request.kind, self._body(request)
        meta = object["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
        if kind.is_namespaced:
            meta["namespace"] = request.namespace
        if _keeps_status(kind) and kind.schema is not None:
            object.pop("status", None)
        for field in ("uid", "resourceVersion", "deletionTimestamp", "creationTimestamp"):
            meta.pop(field, None)
        self._check_namespace(request)
        validation.check(kind, object, None)
        defaults.fill_in(kind, object)
        if kind.name == "Pod":
            set_priority(self.store, self.kinds, object)
            kueue.hold(self.kinds, object)
            pod_security.check(self._namespace(request.namespace), object)
        if request.is_dry_run:
            if self.store.find(kind, request.namespace, meta["name"]):
                message = f'{kind.resource} "{meta["name"]}" already exists'
                raise Refusal(409, message, "AlreadyExists")
            return object
        made = self.store.create(kind, object)
        if kind.name == "CustomResourceDefinition":
            self.kinds.define(made)
        if kind.name == "Namespace":
            account = {"metadata": {"name": "default", "namespace": meta["name"]}}
            accounts = kind_of(self.kinds, "serviceaccounts")
            self.store.create(accounts, {"kind": "ServiceAccount", "apiVersion": "v1", **account})
        return made

    def _body(self, request: Request) -> Object:
        object = copy.deepcopy(request.body)
        kind = request.kind
        if not isinstance(object, dict) or not isinstance(object.get("metadata"), dict):
            raise Refusal(400, f"{kind.name} in version {kind.version} cannot be handled")
        named = (object.get("apiVersion", kind.api_version), object.get("kind", kind.name))
        if named != (kind.api_version, kind.name):
            message = f"the API version in the data ({named[0]}, {named[1]}) does not match"
            raise Refusal(400, f"{message} the expected API version ({kind.api_version})")
        namespace = object["metadata"].get("namespace")
        if namespace and request.namespace and namespace != request.namespace:
            raise Refusal(400, "the namespace of the object does not match that of the request")
        return _completed(kind, {"apiVersion": kind.api_version, "kind": kind.name, **object})

    def _namespace(self, name: str) -> Object:
        kind = self.kinds.find("", "v1", "namespaces")
        assert kind is not None
        return self.store.get(kind, "", name)

    def _check_namespace(self, request: Request) -> None:
        if not request.kind.is_namespaced:
            return
        name = request.body["metadata"].get("name", "")
        deletion.check_namespace(self._namespace(request.namespace), request.kind, name)

    def _change(self, request: Request) -> Object:
        old = self._one(request)
        if request.subresource == "scale":
            new = copy.deepcopy(old)
            spec = patched(_scale(old), request.content_type, request.body)["spec"]
            new["spec"]["replicas"] = spec["replicas"]
        elif request.verb == "patch":
            new = patched(old, request.content_type, request.body)
        else:
            new = self._body(request)
        kind = request.kind
        uid = new["metadata"].get("uid")
        if uid not in (None, old["metadata"]["uid"]):
            raise Refusal(409, f"Precondition failed: UID in precondition: {uid}")
        for field in ("uid", "name", "creationTimestamp", "deletionTimestamp", "generation"):
            if field in old["metadata"]:
                new["metadata"][field] = old["metadata"][field]
        if kind.is_namespaced:
            new["metadata"]["namespace"] = request.namespace
        if request.subresource == "status":
            new = {**old, "metadata": new["metadata"], "status": new.get("status") or {}}
        elif _keeps_status(kind):
            new = {key: value for key, value in new.items() if key != "status"}
            new |= {"status": old["status"]} if "status" in old else {}
        new = _completed(kind, new)
        validation.check(kind, new, old)
        if request.is_dry_run:
            return new
        made = self.store.replace(kind, new)
        if kind.name == "CustomResourceDefinition":
            self._redefine(made)
        deletion.finish(self.store, kind, made)
        return made

    def _redefine(self, definition: Object) -> None:
        """Serve the changed kinds, whose objects now have the defaults of new fields."""
        self.kinds.define(definition)
        spec = definition["spec"]
        for version in spec["versions"]:
            kind = self.kinds.find(spec["group"], version["name"], spec["names"]["plural"])
            assert kind is not None, "it was just defined"
            for one in self.store.view(kind, ""):
                self.store.replace(kind, _completed(kind, copied(one)))

    def _delete(self, request: Request) -> Object:
        object = self._one(request)
        if request.is_dry_run:
            return object
        if request.kind.name == "CustomResourceDefinition":
            self.kinds.forget(object)
        body = dict(request.body) if isinstance(request.body, dict) else {}
        for name in ("gracePeriodSeconds", "propagationPolicy"):
            if name in request.query:
                asked = request.query[name]
                body.setdefault(name, int(asked) if asked.isdigit() else asked)
        return deletion.delete(self.store, self.kinds, request.kind, object, body)

    def _evict(self, request: Request) -> Object:
        pod = self._one(request)
        if not request.is_dry_run:
            eviction.evict(self.store, self.kinds, request.kind, pod, request.body or {})
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _bind(self, request: Request) -> Object:
        pod = self._one(request)
        if pod["spec"].get("nodeName"):
            raise Refusal(409, f"pod {request.name} is already assigned to node")
        pod["spec"]["nodeName"] = request.body["target"]["name"]
        condition = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
        pod["status"] = patched(pod["status"], "application/strategic-merge-patch+json", condition)
        self.store.replace(request.kind, pod)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _token(self, request: Request) -> Object:
        self._one(request)
        token = self.permissions.issue(request.namespace, request.name)
        asked = (request.body or {}).get("spec") or {}
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": request.name, "namespace": request.namespace},
            "spec": {**asked, "audiences": asked.get("audiences") or [AUDIENCE]},
            "status": {"token": token, "expirationTimestamp": "2099-01-01T00:00:00Z"},
        }

    def _log(self, request: Request) -> str:
        pod = self._one(request)
        containers = [one["name"] for one in pod["spec"]["containers"]]
        name = request.query.get("container") or containers[0]
        if name not in containers:
            raise Refusal(400, f"container {name} is not valid for pod {request.name}")
        text = self.read_log(pod, name, request.flag("previous"))
        if text is None:
            message = f'container "{name}" in pod "{request.name}" is waiting to start'
            raise Refusal(400, message)
        lines = request.query.get("tailLines", "")
        if lines.isdigit():
            kept = text.splitlines(keepends=True)
            text = "".join(kept[len(kept) - min(int(lines), len(kept)) :])
        return text


def _keeps_status(kind: Kind) -> bool:
    return kind.name in _WITH_STATUS or (kind.schema is not None and "status" in kind.subresources)


def _completed(kind: Kind, object: Object) -> Object:
    """Apply the schema's defaults to a custom resource and prune its unknown fields."""
    if kind.schema is None:
        return object
    own = ("apiVersion", "kind", "metadata")
    rest = {key: value for key, value in object.items() if key not in own}
    return {**{key: object[key] for key in own}, **schema.completed(kind.schema, rest)}


def too_large(wanted: int, version: int) -> Refusal:
    """Return the error of a server whose cache is behind the version that the client has seen."""
    message = f"Too large resource version: {wanted}, current: {version}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return Refusal(504, f"Timeout: {message}", "Timeout", {"causes": causes})


def _scale(object: Object) -> Object:
    replicas = object["spec"].get("replicas", 1)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": object["metadata"],
        "spec": {"replicas": replicas},
        "status": {"replicas": (object.get("status") or {}).get("replicas", 0)},
    }


def kind_of(kinds: Kinds, plural: str, group: str = "") -> Kind:
    """Return a built-in kind.

    Raises:
        Refusal: No kind has this name.
    """
    found = kinds.find(group, "v1", plural)
    if found is None:
        raise not_found("kinds", plural)
    return found
