"""The defaults that the API applies to omitted fields."""

from __future__ import annotations

import base64

from tests.jobs.kube.api.kind import Kind, Object


def fill_in(kind: Kind, object: Object) -> None:
    """Apply the defaults of a kind to a new object."""
    match kind.name:
        case "Pod":
            _pod(object["spec"])
            object["status"] = {"phase": "Pending", "qosClass": "Burstable"}
        case "StatefulSet":
            spec = object["spec"]
            spec.setdefault("replicas", 1)
            spec.setdefault("podManagementPolicy", "OrderedReady")
            _pod(spec["template"]["spec"])
            object["status"] = {"replicas": 0}
        case "Job":
            _job(object)
        case "Secret":
            for key, value in object.pop("stringData", {}).items():
                encoded = base64.b64encode(value.encode()).decode()
                object.setdefault("data", {})[key] = encoded
            object.setdefault("type", "Opaque")
        case "Service":
            object["spec"].setdefault("type", "ClusterIP")
            object["status"] = {"loadBalancer": {}}
        case "Namespace":
            labels = object["metadata"].setdefault("labels", {})
            labels["kubernetes.io/metadata.name"] = object["metadata"]["name"]
            object["status"] = {"phase": "Active"}
        case "Deployment":
            spec = object["spec"]
            spec.setdefault("replicas", 1)
            _pod(spec["template"]["spec"])
            object["status"] = {}
        case "Node":
            object.setdefault("spec", {})


def _pod(spec: Object) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("serviceAccountName", "default")
    for container in spec.get("containers", []):
        container.setdefault("imagePullPolicy", "IfNotPresent")


def _job(object: Object) -> None:
    spec = object["spec"]
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("parallelism", 1)
    spec.setdefault("completions", 1)
    spec.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("suspend", False)
    _pod(spec["template"]["spec"])
    object["status"] = {}
