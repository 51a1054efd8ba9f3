"""The garbage collector: deletes objects whose owners no longer exist."""

from __future__ import annotations

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.deletion import FOREGROUND, delete
from tests.jobs.kube.api.kind import Kind, Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store


class Garbage:
    """Follows owner references, and empties terminating namespaces."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds
        self._namespaces = kind_of(kinds, "namespaces")

    def step(self) -> None:
        everything = [
            (kind, one) for kind in self._kinds.every() for one in self._store.every(kind)
        ]
        known = {one["metadata"]["uid"]: one for _, one in everything}
        for kind, one in everything:
            owners = one["metadata"].get("ownerReferences") or []
            left = [known[owner["uid"]] for owner in owners if owner["uid"] in known]
            if owners and all(map(_goes_first, left)):
                self._delete(kind, one)
        for kind, one in everything:
            if FOREGROUND in (one["metadata"].get("finalizers") or []):
                self._finish(kind, one, everything)
        for namespace in self._store.every(self._namespaces):
            if "deletionTimestamp" in namespace["metadata"]:
                self._empty(namespace["metadata"]["name"], everything)

    def _finish(self, kind: Kind, one: Object, everything: list[tuple[Kind, Object]]) -> None:
        """Remove an owner whose dependents are gone."""
        uid = one["metadata"]["uid"]
        if any(_belongs(other, uid) for _, other in everything):
            return
        left = [name for name in one["metadata"]["finalizers"] if name != FOREGROUND]
        one["metadata"]["finalizers"] = left
        try:
            self._store.replace(kind, one)
            if not left:
                self._store.remove(kind, one["metadata"].get("namespace", ""), _name(one))
        except Refusal:
            return

    def _empty(self, namespace: str, everything: list[tuple[Kind, Object]]) -> None:
        inside = [
            (kind, one)
            for kind, one in everything
            if kind.is_namespaced and one["metadata"]["namespace"] == namespace
        ]
        for kind, one in inside:
            self._delete(kind, one)
        if not inside:
            self._store.remove(self._namespaces, "", namespace)

    def _delete(self, kind: Kind, one: Object) -> None:
        if "deletionTimestamp" in one["metadata"]:
            return
        try:
            options = {"propagationPolicy": "Background"}
            delete(self._store, self._kinds, kind, one, options)
        except Refusal:
            # The object has changed or is gone: the next step handles it.
            return


def _goes_first(owner: Object) -> bool:
    """Return whether an owner waits for the deletion of its dependents."""
    return FOREGROUND in (owner["metadata"].get("finalizers") or [])


def _belongs(one: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences") or [])


def _name(one: Object) -> str:
    return str(one["metadata"]["name"])
