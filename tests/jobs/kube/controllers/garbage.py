"""The garbage collector: deletes objects whose owners no longer exist."""

from __future__ import annotations

from tests.jobs.kube.api.deletion import FOREGROUND, delete, drop_finalizer
from tests.jobs.kube.api.kind import Kind, Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store, copied


class Garbage:
    """Follows owner references."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds

    def step(self) -> None:
        everything = [(kind, one) for kind in self._kinds.every() for one in self._store.view(kind)]
        known = {one["metadata"]["uid"]: one for _, one in everything}
        for kind, one in everything:
            owners = one["metadata"].get("ownerReferences") or []
            left = [known[owner["uid"]] for owner in owners if owner["uid"] in known]
            if owners and all(map(_goes_first, left)):
                self._delete(kind, one)
        for kind, one in everything:
            if _goes_first(one):
                self._finish(kind, one, everything)

    def _finish(self, kind: Kind, one: Object, everything: list[tuple[Kind, Object]]) -> None:
        """Remove an owner whose dependents no longer exist."""
        uid = one["metadata"]["uid"]
        if any(_belongs(other, uid) for _, other in everything):
            return
        try:
            drop_finalizer(self._store, kind, one, FOREGROUND)
        except Refusal:
            return

    def _delete(self, kind: Kind, one: Object) -> None:
        if "deletionTimestamp" in one["metadata"]:
            return
        try:
            options = {"propagationPolicy": "Background"}
            delete(self._store, self._kinds, kind, copied(one), options)
        except Refusal:
            # The object was changed or removed: the next step handles it.
            return


def _goes_first(owner: Object) -> bool:
    """Return whether an owner waits for the deletion of its dependents."""
    return FOREGROUND in (owner["metadata"].get("finalizers") or [])


def _belongs(one: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences") or [])
