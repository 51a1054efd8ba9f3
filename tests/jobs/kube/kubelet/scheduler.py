"""The scheduler: assigns each pod to a node, preempts others, or reports why it cannot."""

from __future__ import annotations

import re
from collections import Counter

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.deletion import delete
from tests.jobs.kube.api.events import Recorder
from tests.jobs.kube.api.eviction import disrupt
from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.store import Store, copied, now_text

_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


class Scheduler:
    """Binds pods to the least loaded node that fits."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds
        self._pods = kind_of(kinds, "pods")
        self._nodes = kind_of(kinds, "nodes")
        self._events = Recorder(store, kinds, "default-scheduler")

    def step(self) -> None:
        pods = self._store.view(self._pods)
        waiting = [copied(pod) for pod in pods if _waits(pod)]
        waiting.sort(key=_priority, reverse=True)
        if not waiting:
            return
        nodes = self._store.view(self._nodes)
        used: dict[str, Counter[str]] = {one["metadata"]["name"]: Counter() for one in nodes}
        for pod in pods:
            name = pod["spec"].get("nodeName", "")
            if name in used and pod["status"]["phase"] not in ("Succeeded", "Failed"):
                used[name].update(requests(pod))
        for pod in waiting:
            self._place(pod, nodes, used)

    def _place(self, pod: Object, nodes: list[Object], used: dict[str, Counter[str]]) -> None:
        reasons: Counter[str] = Counter()
        fitting = []
        for node in nodes:
            name = node["metadata"]["name"]
            if reason := _unfit(pod, node, used[name]):
                reasons[reason] += 1
            else:
                fitting.append(name)
        if pod["spec"].get("schedulingGates"):
            self._tell(pod, "SchedulingGated", "Scheduling is blocked due to non-empty gates")
        elif fitting:
            best = min(fitting, key=lambda name: used[name]["pods"])
            pod["spec"]["nodeName"] = best
            used[best].update(requests(pod))
            self._tell(pod, "", "")
        else:
            self._preempt(pod, nodes)
            told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
            self._tell(pod, "Unschedulable", f"0/{len(nodes)} nodes are available: {told}.")

    def _preempt(self, pod: Object, nodes: list[Object]) -> None:
        """Delete pods of lower priority from the first node on which the pod then fits."""
        for node in nodes:
            placed = [
                one
                for one in self._store.view(self._pods)
                if one["spec"].get("nodeName") == node["metadata"]["name"]
                and one["status"]["phase"] not in ("Succeeded", "Failed")
            ]
            victims = [one for one in placed if _priority(one) < _priority(pod)]
            kept: Counter[str] = Counter()
            for one in placed:
                kept.update({} if one in victims else requests(one))
            if victims and not _unfit(pod, node, kept):
                for victim in victims:
                    self._remove(copied(victim))
                return

    def _remove(self, victim: Object) -> None:
        if "deletionTimestamp" in victim["metadata"]:
            return  # The preempting pod waits until it is removed.
        message = "default-scheduler: preempting to accommodate a higher priority pod"
        marked = disrupt(self._store, self._pods, victim, "PreemptionByScheduler", message)
        self._events.tell(victim, "Preempted", "Preempted by a pod of a higher priority", "Normal")
        delete(self._store, self._kinds, self._pods, marked, None)

    def _tell(self, pod: Object, reason: str, message: str) -> None:
        old = pod["status"].get("conditions") or []
        if any(one.get("message") == message and one.get("reason") == reason for one in old):
            return
        condition = {"type": "PodScheduled", "status": "False", "lastTransitionTime": now_text()}
        condition |= {"reason": reason, "message": message}
        if not reason:
            condition = {**condition, "status": "True"}
        others = [one for one in old if one["type"] != "PodScheduled"]
        pod["status"]["conditions"] = [*others, condition]
        self._store.replace(self._pods, pod)
        if reason == "Unschedulable":
            self._events.tell(pod, "FailedScheduling", message)
        elif not reason:
            node = pod["spec"]["nodeName"]
            self._events.tell(pod, "Scheduled", f"Successfully assigned to {node}", "Normal")


def quantity(text: object) -> float:
    found = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(text))
    assert found is not None, f"no quantity: {text}"
    return float(found[1]) * _UNITS[found[2]]


def requests(pod: Object) -> dict[str, float]:
    """Return the resources that a pod requests."""
    asked: Counter[str] = Counter({"pods": 1})
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, amount in wanted.items():
            asked[name] += quantity(amount)  # type: ignore[assignment]
    return dict(asked)


def _priority(pod: Object) -> int:
    return int(pod["spec"].get("priority", 0))


def _waits(pod: Object) -> bool:
    spec = pod["spec"]
    ours = spec.get("schedulerName") == "default-scheduler"
    return ours and not spec.get("nodeName") and "deletionTimestamp" not in pod["metadata"]


def _unfit(pod: Object, node: Object, used: Counter[str]) -> str:
    """Return the reason why a pod does not fit on a node; empty if it fits."""
    labels = node["metadata"].get("labels") or {}
    wanted = pod["spec"].get("nodeSelector") or {}
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    if any(labels.get(key) != value for key, value in wanted.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] != "PreferNoSchedule" and not _tolerates(pod, taint):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    free = {name: quantity(size) for name, size in node["status"]["allocatable"].items()}
    for name, amount in requests(pod).items():
        if used[name] + amount > free.get(name, 0.0):
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return ""


def _tolerates(pod: Object, taint: Object) -> bool:
    for one in pod["spec"].get("tolerations") or []:
        same_value = one.get("operator") == "Exists" or one.get("value", "") == taint.get(
            "value", ""
        )
        same_effect = one.get("effect") in (None, "", taint["effect"])
        if one.get("key") in (None, "", taint["key"]) and same_value and same_effect:
            # A toleration for a limited time (`tolerationSeconds`) counts, too.
            return True
    return False
