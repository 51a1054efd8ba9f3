"""The controller of deployments: pods without an identity, which are replaced when they end."""

from __future__ import annotations

import contextlib
import secrets

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store, copied
from tests.jobs.kube.controllers.owned import Owned, goes, is_over, is_ready


class Deployments:
    """Keeps the wanted number of pods, which it owns without a replica set between them."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kind = kind_of(kinds, "deployments", "apps")
        self._pods = Owned(store, kinds)

    def step(self) -> None:
        for one in self._store.view(self._kind):
            if "deletionTimestamp" not in one["metadata"]:
                # The next step retries; a terminating namespace refuses all new pods.
                with contextlib.suppress(Refusal):
                    self._keep(one)

    def _keep(self, one: Object) -> None:
        active = [pod for pod in self._pods.of(one) if not goes(pod) and not is_over(pod)]
        wanted = int(one["spec"]["replicas"])
        for pod in active[wanted:]:
            self._pods.delete(pod)
        for _ in range(wanted - len(active)):
            name = f"{one['metadata']['name']}-{secrets.token_hex(3)[:5]}"
            self._pods.make(one, name, {})
        ready = sum(map(is_ready, active))
        status = {
            "observedGeneration": one["metadata"]["generation"],
            "replicas": len(active),
            "updatedReplicas": len(active),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "conditions": [{"type": "Available", "status": str(ready == wanted)}],
        }
        self._store.replace(self._kind, {**copied(one), "status": status})
