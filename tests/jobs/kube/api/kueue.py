"""The admission of Kueue, if its queues are defined: it holds back the pods of a queue."""

from __future__ import annotations

from tests.jobs.kube.api.kind import Kind, Kinds, Object
from tests.jobs.kube.api.refusal import Refusal

#: The label with the queue of a pod, and those with its group.
QUEUE = "kueue.x-k8s.io/queue-name"
GROUP = "kueue.x-k8s.io/pod-group-name"
GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"

MANAGED = "kueue.x-k8s.io/managed"
GATE = "kueue.x-k8s.io/admission"


def local_queues(kinds: Kinds) -> Kind | None:
    """Return the kind of queues, or None in a cluster without Kueue."""
    return kinds.find("kueue.x-k8s.io", "v1beta1", "localqueues")


def hold(kinds: Kinds, pod: Object) -> None:
    """Gate a new pod of a queue, unless it belongs to a controller.

    Raises:
        Refusal: The pod has only a part of the labels of a group.
    """
    meta = pod["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    if local_queues(kinds) is None or QUEUE not in labels or meta.get("ownerReferences"):
        return
    if (GROUP in labels) != (GROUP_SIZE in notes):
        raise Refusal(
            403,
            'admission webhook "vpod.kb.io" denied the request: both the label '
            f"'{GROUP}' and the annotation '{GROUP_SIZE}' should be set",
        )
    labels[MANAGED] = "true"
    meta["finalizers"] = [*(meta.get("finalizers") or []), MANAGED]
    spec = pod["spec"]
    spec["schedulingGates"] = [*(spec.get("schedulingGates") or []), {"name": GATE}]
