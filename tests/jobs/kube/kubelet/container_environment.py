"""The runtime environment of a container: variables, arguments, and secrets as files."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tests.jobs.kube.api.api import kind_of
from tests.jobs.kube.api.kind import Kinds, Object
from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store

#: Variables that every process inherits, because this machine acts as the image.
INHERITED = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "TMPDIR")

#: Identifies the processes of a pod.
MARK = "STANDIN_POD"

#: The file with the credentials of the pod's service account, in the folder of the pod. A real
#: cluster mounts a token below /var/run/secrets, which is a folder of this machine here.
KUBECONFIG = "kubeconfig"

_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


class CannotCreate(Exception):
    """A container refers to a missing object."""


class ContainerEnvironment:
    """Creates the environments of a pod's containers; secrets are read when a container starts."""

    def __init__(self, store: Store, kinds: Kinds, folder: Path) -> None:
        self._store = store
        self._kinds = kinds
        #: The folder for logs and volumes of the pod.
        self.folder = folder

    def environment(self, pod: Object, container: Object) -> dict[str, str]:
        """Return the environment of a container.

        Raises:
            CannotCreate: A secret or config map does not exist.
        """
        found = {name: os.environ[name] for name in INHERITED if name in os.environ}
        found["HOSTNAME"] = pod["spec"].get("hostname") or pod["metadata"]["name"]
        found[MARK] = pod["metadata"]["uid"]
        if (self.folder / KUBECONFIG).exists():
            found["KUBECONFIG"] = str(self.folder / KUBECONFIG)
        for entry in container.get("env") or []:
            if "valueFrom" in entry:
                value = self._value(pod, entry["valueFrom"])
                if value is not None:
                    found[entry["name"]] = value
            else:
                found[entry["name"]] = _expanded(entry.get("value") or "", found)
        places = self._mounts(pod, container)
        return {name: _moved(value, places) for name, value in found.items()}

    def command(self, pod: Object, container: Object, environment: dict[str, str]) -> list[str]:
        """Return `command` and `args` with references to the environment expanded."""
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        places = self._mounts(pod, container)
        return [_moved(_expanded(word, environment), places) for word in words]

    def _value(self, pod: Object, source: Object) -> str | None:
        if "fieldRef" in source:
            return _field(pod, source["fieldRef"]["fieldPath"])
        if "secretKeyRef" in source:
            data = self._data(pod, "secrets", source["secretKeyRef"])
            return None if data is None else base64.b64decode(data).decode()
        return self._data(pod, "configmaps", source["configMapKeyRef"])

    def _data(self, pod: Object, plural: str, reference: Object) -> str | None:
        found = self._read(pod, plural, reference["name"], bool(reference.get("optional")))
        if found is None:
            return None
        if reference["key"] not in (found.get("data") or {}):
            raise CannotCreate(f"couldn't find key {reference['key']} in {reference['name']}")
        return str(found["data"][reference["key"]])

    def _read(self, pod: Object, plural: str, name: str, is_optional: bool) -> Object | None:
        namespace = pod["metadata"]["namespace"]
        try:
            return self._store.get(kind_of(self._kinds, plural), namespace, name)
        except Refusal:
            if is_optional:
                return None
            raise CannotCreate(f'{plural.rstrip("s")} "{name}" not found') from None

    def _mounts(self, pod: Object, container: Object) -> Sequence[tuple[str, Path]]:
        """Return the folders on this machine for the mounts of a container, longest path first.

        All containers share the file system of this machine, so paths below a mount are rewritten
        in arguments and environment.
        """
        volumes = {one["name"]: one for one in pod["spec"].get("volumes") or []}
        places = []
        for mount in container.get("volumeMounts") or []:
            folder = self.folder / "volumes" / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            volume = volumes[mount["name"]]
            if "secret" in volume:
                self._fill(pod, volume["secret"], folder)
            places.append((mount["mountPath"].rstrip("/"), folder))
        return sorted(places, key=lambda place: len(place[0]), reverse=True)

    def _fill(self, pod: Object, source: Object, folder: Path) -> None:
        is_optional = bool(source.get("optional"))
        secret = self._read(pod, "secrets", source["secretName"], is_optional)
        for name, value in ((secret or {}).get("data") or {}).items():
            path = folder / name
            path.unlink(missing_ok=True)
            path.write_bytes(base64.b64decode(value))
            path.chmod(source.get("defaultMode", 0o644))


def _field(pod: Object, path: str) -> str:
    if found := _KEYED.fullmatch(path):
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    value: object = pod
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def _expanded(text: str, environment: dict[str, str]) -> str:
    return _REFERENCE.sub(lambda found: environment.get(found[1], found[0]), text)


def _moved(text: str, places: Sequence[tuple[str, Path]]) -> str:
    for inside, outside in places:
        if text == inside or text.startswith(f"{inside}/"):
            return f"{outside}{text[len(inside) :]}"
    return text
