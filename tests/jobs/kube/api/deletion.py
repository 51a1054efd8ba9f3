"""Deletion of objects: pods after their grace period, others immediately, all after finalizers."""

from __future__ import annotations

import datetime
from typing import Any

from tests.jobs.kube.api.kind import Kind, Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store, copied

FOREGROUND = "foregroundDeletion"


def check_namespace(namespace: Object, kind: Kind, name: str) -> None:
    """Refuse to create an object in a terminating namespace.

    Raises:
        Refusal: The namespace is terminating.
    """
    meta = namespace["metadata"]
    if "deletionTimestamp" not in meta:
        return
    message = f"unable to create new content in namespace {meta['name']} because it is being"
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {meta['name']} is being terminated",
        "field": "metadata.namespace",
    }
    details = {"name": name, "kind": kind.plural, "group": kind.group, "causes": [cause]}
    text = f'{kind.resource} "{name}" is forbidden: {message} terminated'
    raise Refusal(403, text, details=details)


def delete(store: Store, kinds: Kinds, kind: Kind, object: Object, options: Any) -> Object:
    """Delete an object, or mark it as terminating, and return its last state."""
    options = options if isinstance(options, dict) else {}
    meta = object["metadata"]
    _check_preconditions(kind, meta, options.get("preconditions") or {})
    policy = options.get("propagationPolicy")
    # If the client sets no policy, jobs keep the default of the first version of their API.
    if policy == "Orphan" or (policy is None and kind.name == "Job"):
        _orphan(store, kinds, meta["uid"])
    if policy == "Foreground" and FOREGROUND not in (meta.get("finalizers") or []):
        meta["finalizers"] = [*(meta.get("finalizers") or []), FOREGROUND]
    grace = _grace(kind, object, options)
    is_namespace = kind.name == "Namespace"
    if grace == 0 and not meta.get("finalizers") and not is_namespace:
        return store.remove(kind, meta.get("namespace", ""), meta["name"])
    known = meta.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" not in meta or (known is not None and grace < known):
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=grace)
        meta["deletionTimestamp"] = until.strftime("%Y-%m-%dT%H:%M:%SZ")
        meta["deletionGracePeriodSeconds"] = grace
    if is_namespace:
        object["status"] = {"phase": "Terminating"}
    return store.replace(kind, object)


def _grace(kind: Kind, pod: Object, options: Object) -> int:
    """Return the grace period of a pod in seconds; 0 for all other kinds."""
    if kind.name != "Pod" or not pod["spec"].get("nodeName"):
        return 0
    if pod["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    asked = options.get("gracePeriodSeconds")
    return int(pod["spec"]["terminationGracePeriodSeconds"] if asked is None else asked)


def _check_preconditions(kind: Kind, meta: Object, wanted: Object) -> None:
    for field in ("uid", "resourceVersion"):
        if wanted.get(field) and wanted[field] != meta[field]:
            message = (
                f'Operation cannot be fulfilled on {kind.resource} "{meta["name"]}": Precondition'
                f" failed: {field} in precondition: {wanted[field]}, in object meta: {meta[field]}"
            )
            raise Refusal(409, message)


def _orphan(store: Store, kinds: Kinds, uid: str) -> None:
    for kind in kinds.every():
        for one in store.view(kind):
            owners = one["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == uid for owner in owners):
                orphan = copied(one)
                left = [owner for owner in owners if owner["uid"] != uid]
                orphan["metadata"]["ownerReferences"] = left
                store.replace(kind, orphan)


def finish(store: Store, kind: Kind, object: Object) -> None:
    """Remove a terminating object if it has neither finalizers nor a grace period left."""
    meta = object["metadata"]
    waits = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" in meta and not waits and kind.name != "Namespace":
        store.remove(kind, meta.get("namespace", ""), meta["name"])


def end_grace(store: Store, kind: Kind, pod: Object) -> None:
    """End the grace period of a terminating pod, as the kubelet does when nothing runs any more."""
    pod["metadata"]["deletionGracePeriodSeconds"] = 0
    finish(store, kind, store.replace(kind, pod))


def drop_finalizer(store: Store, kind: Kind, object: Object, finalizer: str) -> None:
    """Remove a finalizer from an object, and the object itself if only the finalizer kept it."""
    left = [name for name in object["metadata"]["finalizers"] if name != finalizer]
    meta = {**object["metadata"], "finalizers": left}
    finish(store, kind, store.replace(kind, {**object, "metadata": meta}))
