"""The controller of stateful sets: one pod per ordinal, always with the same name."""

from __future__ import annotations

import contextlib
import hashlib
import json

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store
from tests.jobs.kube.controllers.owned import Owned, goes, is_over, is_ready

INDEX = "apps.kubernetes.io/pod-index"
REVISION = "controller-revision-hash"


class StatefulSets:
    """Creates, replaces and removes pods, in order unless parallel management is allowed."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kind = kind_of(kinds, "statefulsets", "apps")
        self._pods = Owned(store, kinds)

    def step(self) -> None:
        for one in self._store.every(self._kind):
            if "deletionTimestamp" not in one["metadata"]:
                with contextlib.suppress(Refusal):
                    # The next step retries; a terminating namespace refuses all new pods.
                    self._keep(one)

    def _keep(self, one: Object) -> None:
        spec, name = one["spec"], one["metadata"]["name"]
        pods = {pod["metadata"]["name"]: pod for pod in self._pods.of(one)}
        is_parallel = spec["podManagementPolicy"] == "Parallel"
        self._tell(one, list(pods.values()))
        for ordinal in range(spec["replicas"]):
            pod = pods.get(f"{name}-{ordinal}")
            if pod is None:
                self._make(one, ordinal)
            elif is_over(pod):
                self._pods.delete(pod)
            if not is_parallel and (pod is None or not is_ready(pod) or goes(pod)):
                return
        beyond = [pod for pod in pods.values() if _ordinal(pod) >= spec["replicas"]]
        for pod in sorted(beyond, key=_ordinal, reverse=True):
            self._pods.delete(pod)
            if not is_parallel:
                return
        self._update(one, list(pods.values()))

    def _make(self, one: Object, ordinal: int) -> None:
        name = f"{one['metadata']['name']}-{ordinal}"
        labels = {
            INDEX: str(ordinal),
            "statefulset.kubernetes.io/pod-name": name,
            REVISION: _revision(one),
        }
        place = {"hostname": name, "subdomain": one["spec"].get("serviceName", "")}
        self._pods.make(one, name, {"labels": labels, "spec": place})

    def _update(self, one: Object, pods: list[Object]) -> None:
        """Replace one pod with an outdated template at a time, in descending order."""
        if any(goes(pod) or not is_ready(pod) for pod in pods):
            return
        for pod in sorted(pods, key=_ordinal, reverse=True):
            if pod["metadata"]["labels"].get(REVISION) != _revision(one):
                self._pods.delete(pod)
                return

    def _tell(self, one: Object, pods: list[Object]) -> None:
        ready = sum(is_ready(pod) for pod in pods)
        one["status"] = {
            "observedGeneration": one["metadata"]["generation"],
            "replicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "currentReplicas": len(pods),
        }
        one["metadata"] = self._store.replace(self._kind, one)["metadata"]


def _ordinal(pod: Object) -> int:
    return int(pod["metadata"]["labels"][INDEX])


def _revision(one: Object) -> str:
    text = json.dumps(one["spec"]["template"], sort_keys=True).encode()
    return f"{one['metadata']['name']}-{hashlib.sha256(text).hexdigest()[:10]}"
