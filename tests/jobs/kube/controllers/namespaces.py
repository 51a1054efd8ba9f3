"""The namespace controller: empties terminating namespaces, pods first."""

from __future__ import annotations

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.deletion import delete
from tests.jobs.kube.api.kind import Kind, Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store, copied


class Namespaces:
    """Deletes the objects of terminating namespaces.

    As in Kubernetes 1.33 and later, it deletes all other objects only once no pod exists (ordered
    namespace deletion, KEP-5080). A pod whose finalizer is never removed therefore keeps the
    namespace.
    """

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds
        self._namespaces = kind_of(kinds, "namespaces")
        self._pods = kind_of(kinds, "pods")

    def step(self) -> None:
        for namespace in self._store.view(self._namespaces):
            if "deletionTimestamp" in namespace["metadata"]:
                self._empty(namespace["metadata"]["name"])

    def _empty(self, namespace: str) -> None:
        pods = [(self._pods, one) for one in self._store.view(self._pods, namespace)]
        inside = pods or self._others(namespace)
        for kind, one in inside:
            if "deletionTimestamp" not in one["metadata"]:
                self._delete(kind, one)
        if not inside:
            self._store.remove(self._namespaces, "", namespace)

    def _others(self, namespace: str) -> list[tuple[Kind, Object]]:
        kinds = [kind for kind in self._kinds.every() if kind.is_namespaced]
        return [(kind, one) for kind in kinds for one in self._store.view(kind, namespace)]

    def _delete(self, kind: Kind, one: Object) -> None:
        try:
            options = {"propagationPolicy": "Background"}
            delete(self._store, self._kinds, kind, copied(one), options)
        except Refusal:
            # The object was changed or removed: the next step handles it.
            return
