"""The pods that a controller owns, and how it creates them."""

from __future__ import annotations

from tests.jobs.kube.api import defaults, pod_security, validation
from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.deletion import check_namespace, delete
from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.priority import set_priority
from tests.jobs.kube.api.store import Store, copied


class Owned:
    """The pods of controllers. They are stored objects, which must not be modified."""

    def __init__(self, store: Store, kinds: Kinds) -> None:
        self._store = store
        self._kinds = kinds
        self.kind = kind_of(kinds, "pods")
        self._namespaces = kind_of(kinds, "namespaces")

    def of(self, owner: Object) -> list[Object]:
        meta = owner["metadata"]
        return [
            pod
            for pod in self._store.view(self.kind, meta["namespace"])
            if any(one["uid"] == meta["uid"] for one in pod["metadata"].get("ownerReferences", []))
        ]

    def make(self, owner: Object, name: str, extra: Object) -> None:
        """Create a pod from the owner's template.

        Args:
            owner: The workload.
            name: The name of the pod.
            extra: Additional `labels`, `annotations`, `finalizers`, fields of the `spec`, and
                variables for the `env` of all containers.
        """
        template = copied(owner["spec"]["template"])
        meta = template.get("metadata") or {}
        pod: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": owner["metadata"]["namespace"],
                "labels": {**(meta.get("labels") or {}), **extra.get("labels", {})},
                "annotations": {**(meta.get("annotations") or {}), **extra.get("annotations", {})},
                "finalizers": [*(meta.get("finalizers") or []), *extra.get("finalizers", [])],
                "ownerReferences": [
                    {
                        "apiVersion": owner["apiVersion"],
                        "kind": owner["kind"],
                        "name": owner["metadata"]["name"],
                        "uid": owner["metadata"]["uid"],
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
            "spec": {**template["spec"], **extra.get("spec", {})},
        }
        for container in pod["spec"]["containers"]:
            container["env"] = [*(container.get("env") or []), *extra.get("env", [])]
        validation.check(self.kind, pod, None)
        namespace = self._store.get(self._namespaces, "", owner["metadata"]["namespace"])
        check_namespace(namespace, self.kind, name)
        set_priority(self._store, self._kinds, pod)
        pod_security.check(namespace, pod)
        defaults.fill_in(self.kind, pod)
        self._store.create(self.kind, pod)

    def delete(self, pod: Object) -> None:
        if "deletionTimestamp" not in pod["metadata"]:
            delete(self._store, self._kinds, self.kind, copied(pod), None)


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def is_over(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def goes(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
