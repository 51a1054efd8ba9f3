"""Validation of new objects, and of changes to immutable fields."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

from tests.jobs.kube.api.kind import Kind, Object
from tests.jobs.kube.api.refusal import invalid
from tests.jobs.kube.api.schema import problems
from tests.jobs.kube.api.selector import matches

_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_SERVICE = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")

#: Names of these kinds become parts of host names.
_SHORT_NAMES = {"Pod": 253, "StatefulSet": 63, "Job": 63, "Namespace": 63}

Cause = tuple[str, str]


def check(kind: Kind, object: Object, old: Object | None) -> None:
    """Raise a 422 that names every invalid field of the object."""
    causes = [*_metadata(kind, object["metadata"]), *_spec(kind, object)]
    if kind.schema is not None:
        own = ("apiVersion", "kind", "metadata")
        rest = {key: value for key, value in object.items() if key not in own}
        causes += [(path.lstrip("."), told) for path, told in problems(kind.schema, rest, "")]
    if old is not None:
        causes += _change(kind, old, object)
    if causes:
        raise invalid(kind.name, object["metadata"].get("name", ""), causes)


def _metadata(kind: Kind, meta: Object) -> Iterator[Cause]:
    name = meta.get("name", "")
    pattern = {"Service": _SERVICE, "Namespace": _LABEL}.get(kind.name, _SUBDOMAIN)
    if kind.group != "rbac.authorization.k8s.io" and not pattern.match(name):
        yield "metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 name is expected'
    if len(name) > _SHORT_NAMES.get(kind.name, 63 if kind.name == "Service" else 253):
        yield "metadata.name", f'Invalid value: "{name}": must be no more than 63 characters'
    yield from _labels("metadata.labels", meta.get("labels") or {})
    for key, value in (meta.get("annotations") or {}).items():
        if not isinstance(value, str):
            yield "metadata.annotations", f'Invalid value: "{key}": must be a string'
    for owner in meta.get("ownerReferences") or []:
        if missing := {"apiVersion", "kind", "name", "uid"} - owner.keys():
            yield "metadata.ownerReferences", f"Required value: {sorted(missing)[0]}"


def _labels(field: str, labels: dict[str, Any]) -> Iterator[Cause]:
    for key, value in labels.items():
        if not _KEY.match(key) or len(key.split("/")[-1]) > 63:
            yield field, f'Invalid value: "{key}": name part must consist of alphanumerics'
        if not isinstance(value, str) or not _VALUE.match(value) or len(value) > 63:
            yield field, f'Invalid value: "{value}": a valid label must be at most 63 alphanumerics'


def _spec(kind: Kind, object: Object) -> Iterator[Cause]:
    match kind.name:
        case "Pod":
            yield from _pod("spec", object.get("spec") or {})
        case "StatefulSet":
            yield from _stateful_set(object.get("spec") or {})
        case "Job":
            yield from _job(object.get("spec") or {})
        case "Service":
            yield from _service(object.get("spec") or {})
        case "Secret":
            yield from _secret(object.get("data") or {})


def _pod(field: str, spec: Object) -> Iterator[Cause]:
    containers = spec.get("containers") or []
    if not containers:
        yield f"{field}.containers", "Required value"
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    names: set[str] = set()
    for number, container in enumerate([*containers, *(spec.get("initContainers") or [])]):
        here = f"{field}.containers[{number}]"
        name = container.get("name", "")
        if not _LABEL.match(name):
            yield f"{here}.name", "Required value" if not name else f'Invalid value: "{name}"'
        if name in names:
            yield f"{here}.name", f'Duplicate value: "{name}"'
        names.add(name)
        if not container.get("image"):
            yield f"{here}.image", "Required value"
        yield from _container(here, container, volumes)
    yield from _labels(f"{field}.nodeSelector", spec.get("nodeSelector") or {})
    if spec.get("restartPolicy", "Always") not in ("Always", "OnFailure", "Never"):
        yield f"{field}.restartPolicy", f'Unsupported value: "{spec["restartPolicy"]}"'


def _container(here: str, container: Object, volumes: set[str]) -> Iterator[Cause]:
    for mount in container.get("volumeMounts") or []:
        if mount.get("name") not in volumes:
            yield f"{here}.volumeMounts", f'Not found: "{mount.get("name")}"'
    for entry in container.get("env") or []:
        if not isinstance(entry.get("value", ""), str):
            yield f"{here}.env", f'Invalid value: "{entry.get("name")}": must be a string'
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    for name, asked in (resources.get("requests") or {}).items():
        if "/" in name and limits.get(name) != asked:
            yield f"{here}.resources.requests", f"Invalid value: must equal limit of {name}"
    for kind in ("readinessProbe", "livenessProbe"):
        probe = container.get(kind)
        if probe and not {"exec", "tcpSocket", "httpGet", "grpc"} & probe.keys():
            yield f"{here}.{kind}", "Required value: must specify a handler type"


def _stateful_set(spec: Object) -> Iterator[Cause]:
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    selector = spec.get("selector") or {}
    if not selector:
        yield "spec.selector", "Required value"
    elif not matches(selector, labels):
        yield "spec.template.metadata.labels", "Invalid value: `selector` does not match labels"
    if spec.get("replicas", 1) < 0:
        yield "spec.replicas", "Invalid value: must be greater than or equal to 0"
    pod = template.get("spec") or {}
    if pod.get("restartPolicy", "Always") != "Always":
        restarts = pod["restartPolicy"]
        yield "spec.template.spec.restartPolicy", f'Unsupported value: "{restarts}"'
    yield from _pod("spec.template.spec", pod)


def _job(spec: Object) -> Iterator[Cause]:
    pod = (spec.get("template") or {}).get("spec") or {}
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        yield "spec.template.spec.restartPolicy", "Required value: valid values: OnFailure, Never"
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        yield "spec.completions", "Required value: when completion mode is Indexed"
    if spec.get("podFailurePolicy") and pod.get("restartPolicy") != "Never":
        yield "spec.podFailurePolicy", "Invalid value: only with restartPolicy Never"
    yield from _pod("spec.template.spec", pod)


def _service(spec: Object) -> Iterator[Cause]:
    if spec.get("clusterIP") != "None" and not spec.get("ports"):
        yield "spec.ports", "Required value"
    for port in spec.get("ports") or []:
        if not 0 < port.get("port", 0) < 65536:
            yield "spec.ports", "Invalid value: must be between 1 and 65535, inclusive"


def _secret(values: Object) -> Iterator[Cause]:
    for key, value in values.items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            yield f"data[{key}]", "Invalid value: illegal base64 data"


def _change(kind: Kind, old: Object, new: Object) -> Iterator[Cause]:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    match kind.name:
        case "Pod":
            if _fixed_of_pod(before) != _fixed_of_pod(after):
                yield "spec", "Forbidden: pod updates may not change fields other than the image"
        case "StatefulSet":
            for field in ("serviceName", "selector", "podManagementPolicy", "volumeClaimTemplates"):
                if before.get(field) != after.get(field):
                    yield "spec", f"Forbidden: updates to statefulset spec.{field} are forbidden"
        case "Job":
            yield from _change_of_job(before, after)
        case "Secret":
            if old.get("immutable") and old.get("data") != new.get("data"):
                yield "data", "Forbidden: field is immutable when `immutable` is set"


def _fixed_of_pod(spec: Object) -> Object:
    free = {"tolerations", "activeDeadlineSeconds", "schedulingGates", "nodeName"}
    fixed = {key: value for key, value in spec.items() if key not in free}
    containers = [{**one, "image": ""} for one in spec.get("containers") or []]
    return {**fixed, "containers": containers}


def _change_of_job(before: Object, after: Object) -> Iterator[Cause]:
    for field in ("selector", "completionMode", "podFailurePolicy"):
        if before.get(field) != after.get(field):
            yield f"spec.{field}", "Invalid value: field is immutable"
    if before.get("template") != after.get("template") and not before.get("suspend"):
        yield "spec.template", "Invalid value: field is immutable"
    if before.get("completions") != after.get("completions"):
        both = after.get("completions") == after.get("parallelism")
        if after.get("completionMode") != "Indexed" or not both:
            yield "spec.completions", "Invalid value: field is immutable"
