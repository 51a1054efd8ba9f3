"""The events that the components of a cluster record."""

from __future__ import annotations

import secrets

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.store import Store, now_text


class Recorder:
    """Records events about objects; a repeated event increases a count.

    Like all objects, events are not created in a terminating namespace.
    """

    def __init__(self, store: Store, kinds: Kinds, component: str) -> None:
        self._store = store
        self._kind = kind_of(kinds, "events")
        self._namespaces = kind_of(kinds, "namespaces")
        self._component = component
        self._told: dict[tuple[str, str, str], str] = {}

    def tell(self, object: Object, reason: str, message: str, type: str = "Warning") -> None:
        meta, now = object["metadata"], now_text()
        namespace = self._store.find(self._namespaces, "", meta["namespace"])
        if namespace is None or "deletionTimestamp" in namespace["metadata"]:
            return
        key = (meta["uid"], reason, message)
        name = self._told.get(key)
        known = self._store.find(self._kind, meta["namespace"], name) if name else None
        if known is not None:
            known.update(count=known["count"] + 1, lastTimestamp=now)
            self._store.replace(self._kind, known)
            return
        name = self._told[key] = f"{meta['name']}.{secrets.token_hex(8)}"
        reference = {key: meta[key] for key in ("name", "namespace", "uid")}
        event: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": meta["namespace"]},
            "involvedObject": {**reference, "kind": object["kind"], "apiVersion": "v1"},
            "reason": reason,
            "message": message,
            "type": type,
            "source": {"component": self._component},
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
        }
        self._store.create(self._kind, event)
