"""The controller of disruption budgets: how many pods of each may be evicted now."""

from __future__ import annotations

import contextlib

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.selector import matches
from tests.jobs.kube.api.store import Store, copied
from tests.jobs.kube.controllers.owned import goes, is_over, is_ready

#: The owners with the scale subresource, whose pods `maxUnavailable` and percentages can count.
SCALED = {"Deployment", "StatefulSet"}


class DisruptionBudgets:
    """Computes the status of budgets, which evictions decrease in between."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kind = kind_of(kinds, "poddisruptionbudgets", "policy")
        self._pods = kind_of(kinds, "pods")

    def step(self) -> None:
        for budget in self._store.view(self._kind):
            # An eviction may have changed the budget; the next step uses its new state.
            with contextlib.suppress(Refusal):
                self._store.replace(self._kind, {**copied(budget), "status": self._status(budget)})

    def _status(self, budget: Object) -> Object:
        meta, spec = budget["metadata"], budget["spec"]
        mine = [
            pod
            for pod in self._store.view(self._pods, meta["namespace"])
            if matches(spec.get("selector") or {}, pod["metadata"].get("labels") or {})
        ]
        there = {pod["metadata"]["name"] for pod in mine if not goes(pod)}
        evicted = (budget.get("status") or {}).get("disruptedPods") or {}
        disrupted = {name: at for name, at in evicted.items() if name in there}
        healthy = sum(
            is_ready(pod) and not goes(pod) and pod["metadata"]["name"] not in disrupted
            for pod in mine
        )
        desired = _desired(spec, [pod for pod in mine if not is_over(pod)])
        status: Object = {
            "observedGeneration": meta["generation"],
            "expectedPods": len(mine),
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "disruptionsAllowed": 0 if desired is None else max(healthy - desired, 0),
        }
        return status | ({"disruptedPods": disrupted} if disrupted else {})


def _desired(spec: Object, pods: list[Object]) -> int | None:
    """Return how many pods must be healthy; None if that cannot be computed.

    The number of pods of a Job is unknown to the controller, so only an absolute `minAvailable` can
    be compared with it. All evictions fail otherwise.
    """
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    if isinstance(least, int):
        return least
    owners = {
        one.get("kind") for pod in pods for one in pod["metadata"].get("ownerReferences") or [{}]
    }
    if not isinstance(most, int) or not owners <= SCALED:
        return None
    return len(pods) - most
