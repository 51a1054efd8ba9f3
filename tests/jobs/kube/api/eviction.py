"""The eviction of pods, which disruption budgets limit."""

from __future__ import annotations

from tests.jobs.kube.api import deletion
from tests.jobs.kube.api.kind import Kind, Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.selector import matches
from tests.jobs.kube.api.store import Store, copied, now_text


def evict(store: Store, kinds: Kinds, pods: Kind, pod: Object, body: Object) -> None:
    """Evict a pod: first its budget is charged, then it is marked, and then it is deleted.

    Raises:
        Refusal: The budget of the pod allows no disruption now.
    """
    options = body.get("deleteOptions") or {}
    if _needs_budget(pod):
        budgets = kinds.find("policy", "v1", "poddisruptionbudgets")
        assert budgets is not None
        _charge(store, budgets, pod)
        message = "Eviction API: evicting"
        pod = disrupt(store, pods, pod, "EvictionByEvictionAPI", message)
    deletion.delete(store, kinds, pods, pod, options)


def disrupt(store: Store, pods: Kind, pod: Object, reason: str, message: str) -> Object:
    """Set the condition DisruptionTarget, as each component does before it deletes a pod."""
    conditions = {one["type"]: one for one in pod["status"].get("conditions") or []}
    conditions["DisruptionTarget"] = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now_text(),
    }
    pod["status"]["conditions"] = list(conditions.values())
    return store.replace(pods, pod)


def _needs_budget(pod: Object) -> bool:
    is_going = "deletionTimestamp" in pod["metadata"]
    return not is_going and pod["status"].get("phase") == "Running"


def _charge(store: Store, kind: Kind, pod: Object) -> None:
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    found = [
        copied(one)
        for one in store.view(kind, meta["namespace"])
        if matches(one["spec"].get("selector") or {}, labels)
    ]
    if not found:
        return
    if len(found) > 1:
        raise Refusal(
            500,
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does "
            "not support.",
        )
    (budget,) = found
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    is_ready = any(
        one["type"] == "Ready" and one["status"] == "True"
        for one in pod["status"].get("conditions") or []
    )
    if not is_ready and budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return
    if status.get("observedGeneration", 0) < budget["metadata"]["generation"]:
        raise _too_many(f"The disruption budget {name} is still being processed by the server.")
    if not status["disruptionsAllowed"]:
        raise _too_many(
            f"The disruption budget {name} needs {status['desiredHealthy']} healthy pods and has "
            f"{status['currentHealthy']} currently"
        )
    status["disruptionsAllowed"] -= 1
    status["disruptedPods"] = {**(status.get("disruptedPods") or {}), meta["name"]: now_text()}
    store.replace(kind, budget)


def _too_many(cause: str) -> Refusal:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    causes = [{"reason": "DisruptionBudget", "message": cause}]
    return Refusal(429, message, "TooManyRequests", {"causes": causes})
