"""What a job asks for: plain values that can be stored, read again and compared field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mesh_core import ConfigError

__all__ = ["ClientSpec", "JobSpec", "MeshSpec", "check_name", "differences"]

_NAME = re.compile(r"[a-z]([a-z0-9_-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class MeshSpec:
    """One named mesh of hosts, all alike.

    Attributes:
        name: What the hosts are called in the program: `state.trainers`.
        hosts: How many.
        cpus: Processors of each host; None leaves it to the scheduler.
        memory: Memory of each host, in the scheduler's words, such as `16G`.
        gpus: GPUs of each host.
        options: What only the backend understands.

    Raises:
        ConfigError: A name or a number is not one.
    """

    name: str
    hosts: int
    cpus: int | None = None
    memory: str | None = None
    gpus: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name, "mesh")
        _check_count(f"hosts of mesh {self.name!r}", self.hosts, 1)
        for what, value, least in (("cpus", self.cpus, 1), ("gpus", self.gpus, 0)):
            if value is not None:
                _check_count(f"{what} of mesh {self.name!r}", value, least)
        _check_json(f"options of mesh {self.name!r}", self.options)

    def to_json(self) -> dict[str, Any]:
        """Gives plain values that `from_json` reads."""
        return {
            "name": self.name,
            "hosts": self.hosts,
            "cpus": self.cpus,
            "memory": self.memory,
            "gpus": self.gpus,
            "options": _plain(self.options),
        }


@dataclass(frozen=True)
class ClientSpec:
    """The program of a job that runs inside the allocation.

    Attributes:
        argv: A script and its arguments, as `python` takes them.
        workdir: The folder that it runs in.

    Raises:
        ConfigError: There is nothing to run.
    """

    argv: tuple[str, ...]
    workdir: str

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ConfigError("the client script is empty: say what to run inside the job")

    def to_json(self) -> dict[str, Any]:
        """Gives plain values that `from_json` reads."""
        return {"argv": list(self.argv), "workdir": self.workdir}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ClientSpec:
        """Reads what `to_json` gave."""
        return cls(tuple(value["argv"]), value["workdir"])


@dataclass(frozen=True)
class JobSpec:
    """A whole job: which backend, which meshes, and what else the backend is told.

    Attributes:
        name: What the job is called at the scheduler.
        backend: The name of the backend, among the entry points `mesh_jobs.backends`.
        meshes: The meshes, each with a name of its own.
        options: What the backend is told of the whole job.
        ttl_s: How long a worker waits for a program before it ends by itself.
        client: The program that runs inside; None where programs come from outside.

    Raises:
        ConfigError: A name is not one or given twice, or a number is not one.
    """

    name: str
    backend: str
    meshes: tuple[MeshSpec, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    ttl_s: float = 3600.0
    client: ClientSpec | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "job")
        _check_json("options of the job", self.options)
        if not self.ttl_s > 0:
            raise ConfigError(f"ttl_s is {self.ttl_s}: give a number of seconds above 0")
        names = [mesh.name for mesh in self.meshes]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two meshes are named {name!r}: give each a name of its own")

    def mesh(self, name: str) -> MeshSpec:
        """Gives the mesh of a name.

        Raises:
            ConfigError: There is none.
        """
        for mesh in self.meshes:
            if mesh.name == name:
                return mesh
        known = ", ".join(repr(mesh.name) for mesh in self.meshes) or "none"
        raise ConfigError(f"no mesh is named {name!r}: the job has {known}")

    def resized(self, name: str, hosts: int) -> JobSpec:
        """Gives the same job with another number of hosts in one mesh.

        Raises:
            ConfigError: There is no such mesh, or the number is not one.
        """
        changed = replace(self.mesh(name), hosts=hosts)
        meshes = tuple(changed if mesh.name == name else mesh for mesh in self.meshes)
        return replace(self, meshes=meshes)

    def to_json(self) -> dict[str, Any]:
        """Gives plain values that `from_json` reads."""
        return {
            "name": self.name,
            "backend": self.backend,
            "meshes": [mesh.to_json() for mesh in self.meshes],
            "options": _plain(self.options),
            "ttl_s": self.ttl_s,
            "client": self.client.to_json() if self.client else None,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobSpec:
        """Reads what `to_json` gave.

        Raises:
            ConfigError: A value is none that a job can have.
        """
        meshes = tuple(MeshSpec(**mesh) for mesh in value["meshes"])
        client = value.get("client")
        return cls(
            value["name"],
            value["backend"],
            meshes,
            value["options"],
            value["ttl_s"],
            ClientSpec.from_json(client) if client else None,
        )


def differences(old: JobSpec, new: JobSpec) -> list[tuple[str, Any, Any]]:
    """Gives the path of each field that differs, with the old value and the new."""
    found: list[tuple[str, Any, Any]] = []
    _compare("", _by_name(old), _by_name(new), found)
    return found


def check_name(name: str, what: str) -> None:
    """Refuses a name that some scheduler, or Python, would not take.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a {what}: use at most 63 lower-case letters, digits, '-' and "
            "'_', with a letter first and no '-' or '_' last"
        )


def _by_name(spec: JobSpec) -> dict[str, Any]:
    plain = spec.to_json()
    plain["meshes"] = {mesh["name"]: mesh for mesh in plain["meshes"]}
    return plain


def _compare(path: str, old: Any, new: Any, found: list[tuple[str, Any, Any]]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            _compare(f"{path}.{key}" if path else key, old.get(key), new.get(key), found)
    elif old != new:
        found.append((path, old, new))


def _check_count(what: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{what} is {value!r}: give a whole number, {least} or more")


def _check_json(what: str, value: Mapping[str, Any]) -> None:
    try:
        json.dumps(_plain(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{what} cannot be stored: {error}: use numbers, texts, lists and mappings alone"
        ) from None


def _plain(value: Any) -> Any:
    """Gives the value as JSON would give it back, so that comparing with a stored one is fair."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(one) for one in value]
    return value
