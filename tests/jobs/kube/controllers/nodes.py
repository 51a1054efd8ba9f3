"""The node controller: detects missing heartbeats and evicts the pods of a lost node."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.deletion import delete
from tests.jobs.kube.api.eviction import disrupt
from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store, copied, now_text

#: Time without a heartbeat after which a node is not ready. Real: 40 s.
GRACE_S = 2.0

#: Time that a pod stays on a lost node if it does not set a toleration.
EVICTION_S = 300.0

UNREACHABLE = "node.kubernetes.io/unreachable"

#: The taint of cordoned nodes.
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


class Nodes:
    """Marks nodes by the heartbeats that the kubelet provides."""

    def __init__(self, store: Store, kinds: Kinds, heartbeats: Mapping[str, float]) -> None:
        self._store = store
        self._kinds = kinds
        self._nodes = kind_of(kinds, "nodes")
        self._pods = kind_of(kinds, "pods")
        self._heartbeats = heartbeats
        self._lost_at: dict[str, float] = {}

    def step(self) -> None:
        for node in self._store.every(self._nodes):
            name = node["metadata"]["name"]
            is_alive = time.monotonic() - self._heartbeats.get(name, 0.0) < GRACE_S
            if is_alive:
                self._lost_at.pop(name, None)
            else:
                self._lost_at.setdefault(name, time.monotonic())
                self._take_pods(name)
            self._mark(node, is_alive)

    def _mark(self, node: Object, is_alive: bool) -> None:
        own = (UNREACHABLE, UNSCHEDULABLE)
        taints = [one for one in node["spec"].get("taints") or [] if one["key"] not in own]
        if node["spec"].get("unschedulable"):
            taints.append({"key": UNSCHEDULABLE, "effect": "NoSchedule"})
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        if not is_alive:
            taints += [{"key": UNREACHABLE, "effect": one} for one in ("NoSchedule", "NoExecute")]
            condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        node["spec"]["taints"] = taints
        node["status"] = {**node.get("status", {}), "conditions": [condition]}
        self._store.replace(self._nodes, node)

    def _take_pods(self, name: str) -> None:
        for pod in self._store.view(self._pods):
            if pod["spec"].get("nodeName") != name or "deletionTimestamp" in pod["metadata"]:
                continue
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            try:
                self._take(copied(pod), time.monotonic() - self._lost_at[name])
            except Refusal:
                continue

    def _take(self, pod: Object, lost_s: float) -> None:
        conditions = {one["type"]: one for one in pod["status"].get("conditions") or []}
        ready = conditions.get("Ready")
        if ready and ready["status"] == "True":
            ready.update(status="False", reason="NodeNotReady", lastTransitionTime=now_text())
        pod["status"]["conditions"] = list(conditions.values())
        pod = self._store.replace(self._pods, pod)
        if lost_s >= _stays_s(pod):
            message = "Taint manager: deleting due to NoExecute taint"
            pod = disrupt(self._store, self._pods, pod, "DeletionByTaintManager", message)
            delete(self._store, self._kinds, self._pods, pod, None)


def _stays_s(pod: Object) -> float:
    for one in pod["spec"].get("tolerations") or []:
        if one.get("key") in (None, UNREACHABLE) and one.get("effect") in (None, "NoExecute"):
            return float(one.get("tolerationSeconds", "inf"))
    return EVICTION_S
