"""The restricted pod security profile, for namespaces whose label enforces it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.jobs.kube.api.kind import Object
from tests.jobs.kube.api.refusal import Refusal

LABEL = "pod-security.kubernetes.io/enforce"

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def check(namespace: Object, pod: Object) -> None:
    """Reject a pod that violates the profile of its namespace."""
    if (namespace["metadata"].get("labels") or {}).get(LABEL) != "restricted":
        return
    if found := list(_violations(pod["spec"])):
        message = (
            f'pods "{pod["metadata"]["name"]}" is forbidden: violates PodSecurity'
            f' "restricted:latest": {", ".join(found)}'
        )
        raise Refusal(403, message)


def _violations(spec: Object) -> Iterator[str]:
    of_pod = spec.get("securityContext") or {}
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"host namespaces ({field}=true)"
    for volume in spec.get("volumes") or []:
        if not _VOLUMES & volume.keys():
            yield f'restricted volume types (volume "{volume["name"]}")'
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        name = container["name"]
        own = container.get("securityContext") or {}
        if own.get("privileged"):
            yield f'privileged (container "{name}")'
        if own.get("allowPrivilegeEscalation") is not False:
            yield f'allowPrivilegeEscalation != false (container "{name}")'
        capabilities = own.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or []):
            yield f'unrestricted capabilities (container "{name}" must drop "ALL")'
        if set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
            yield f'unrestricted capabilities (container "{name}" adds some)'
        if own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
            yield f'runAsNonRoot != true (container "{name}")'
        if own.get("runAsUser", of_pod.get("runAsUser")) == 0:
            yield f'runAsUser=0 (container "{name}")'
        profile = own.get("seccompProfile") or of_pod.get("seccompProfile") or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            yield f'seccompProfile (container "{name}")'
