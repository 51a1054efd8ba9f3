"""The priority of pods, which admission derives from priority classes."""

from __future__ import annotations

from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store


def set_priority(store: Store, kinds: Kinds, pod: Object) -> None:
    """Set the priority of a new pod to the priority of its class.

    Raises:
        Refusal: The class does not exist, or the pod has another priority.
    """
    kind = kinds.find("scheduling.k8s.io", "v1", "priorityclasses")
    assert kind is not None
    spec, priority = pod["spec"], 0
    forbidden = f'pods "{pod["metadata"]["name"]}" is forbidden'
    if name := spec.get("priorityClassName"):
        found = store.find(kind, "", name)
        if found is None:
            raise Refusal(403, f"{forbidden}: no PriorityClass with name {name} was found")
        priority = int(found["value"])
    if spec.get("priority", priority) != priority:
        raise Refusal(
            403,
            f"{forbidden}: the integer value of priority ({spec['priority']}) must not be provided "
            f"in pod spec; priority admission controller computed {priority} from the given "
            "PriorityClass name",
        )
    spec["priority"] = priority
