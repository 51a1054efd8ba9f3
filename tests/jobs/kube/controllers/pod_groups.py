"""The controller of Kueue's pod groups: all pods of a group are admitted together, or none."""

from __future__ import annotations

import contextlib
from collections import defaultdict

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.deletion import drop_finalizer
from tests.jobs.kube.api.kind import Kind, Kinds, Object
from tests.jobs.kube.api.kueue import GATE, GROUP, GROUP_SIZE, MANAGED, QUEUE, local_queues
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store, copied
from tests.jobs.kube.controllers.owned import goes, is_over

RETRIABLE = "kueue.x-k8s.io/retriable-in-group"


class PodGroups:
    """Admits complete groups of queues that are not held; quotas are unlimited.

    A pod of a group keeps its finalizer, and its quota, until the group has finished: all pods have
    ended, and either all of them succeeded, or the group is not to be retried.
    """

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds
        self._pods = kind_of(kinds, "pods")

    def step(self) -> None:
        queues = local_queues(self._kinds)
        groups: defaultdict[tuple[str, str], list[Object]] = defaultdict(list)
        for pod in self._store.view(self._pods):
            meta = pod["metadata"]
            if MANAGED in (meta.get("finalizers") or []):
                groups[meta["namespace"], meta["labels"].get(GROUP, meta["name"])].append(pod)
        for pods in groups.values():
            # The next step retries after a conflict.
            with contextlib.suppress(Refusal):
                if _is_finished(pods):
                    for pod in pods:
                        drop_finalizer(self._store, self._pods, copied(pod), MANAGED)
                elif queues is not None and self._is_admitted(queues, pods):
                    self._release(pods)

    def _is_admitted(self, queues: Kind, pods: list[Object]) -> bool:
        meta = pods[0]["metadata"]
        queue = self._store.find(queues, meta["namespace"], meta["labels"][QUEUE])
        is_open = queue is not None and queue["spec"].get("stopPolicy", "None") == "None"
        return is_open and len(pods) == int(meta.get("annotations", {}).get(GROUP_SIZE, 1))

    def _release(self, pods: list[Object]) -> None:
        for pod in pods:
            gates = pod["spec"].get("schedulingGates") or []
            left = [gate for gate in gates if gate["name"] != GATE]
            if left != gates:
                spec = {**pod["spec"], "schedulingGates": left}
                self._store.replace(self._pods, {**copied(pod), "spec": spec})


def _is_finished(pods: list[Object]) -> bool:
    if not all(is_over(pod) or _is_gone(pod) for pod in pods):
        return False
    notes = [pod["metadata"].get("annotations") or {} for pod in pods]
    is_final = any(one.get(RETRIABLE) == "false" for one in notes)
    return is_final or all(pod["status"]["phase"] == "Succeeded" for pod in pods)


def _is_gone(pod: Object) -> bool:
    """Return whether only finalizers keep a deleted pod."""
    return goes(pod) and not pod["metadata"].get("deletionGracePeriodSeconds")
