"""The specification of a job: plain values that can be stored, loaded and compared by field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mesh_core import ConfigError

__all__ = [
    "ClientSpec",
    "JobSpec",
    "MeshSpec",
    "check_count",
    "check_name",
    "check_words",
    "differences",
]

_NAME = re.compile(r"[a-z]([a-z0-9_-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class MeshSpec:
    """A named mesh of identical hosts.

    Attributes:
        name: The name of the mesh in the program, as in `state.trainers`.
        hosts: The number of hosts.
        cpus: The number of CPUs per host; None uses the default of the scheduler.
        memory: The memory per host, in the format of the scheduler, such as `16G`.
        gpus: The number of GPUs per host.
        options: Options that only the backend interprets.

    Raises:
        ConfigError: A name or a number is invalid.
    """

    name: str
    hosts: int
    cpus: int | None = None
    memory: str | None = None
    gpus: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name, "mesh")
        check_count(f"hosts of mesh {self.name!r}", self.hosts, 1)
        for what, value, least in (("cpus", self.cpus, 1), ("gpus", self.gpus, 0)):
            if value is not None:
                check_count(f"{what} of mesh {self.name!r}", value, least)
        _check_json(f"options of mesh {self.name!r}", self.options)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that can be stored as JSON."""
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
    """The client script of a job, which runs inside the allocation.

    Attributes:
        argv: The script and its arguments, as on the command line of `python`.
        workdir: The working directory of the script.

    Raises:
        ConfigError: `argv` is empty.
    """

    argv: tuple[str, ...]
    workdir: str

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise ConfigError("the client script is empty: give the command to run inside the job")

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
        return {"argv": list(self.argv), "workdir": self.workdir}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ClientSpec:
        """Create a spec from the values that `to_json` returned."""
        return cls(tuple(value["argv"]), value["workdir"])


@dataclass(frozen=True)
class JobSpec:
    """The specification of a job: its backend, its meshes and the options of the backend.

    Attributes:
        name: The name of the job at the scheduler.
        backend: The name of the backend, an entry point in the group `mesh_jobs.backends`.
        meshes: The meshes, each with a unique name.
        options: Options of the backend for the whole job.
        ttl_s: The time in seconds after which a worker exits if no program uses it.
        client: The client script, which runs inside the allocation; None if programs attach from
            outside.

    Raises:
        ConfigError: A name is invalid or used twice, or a number is invalid.
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
                raise ConfigError(f"two meshes are named {name!r}: give each a different name")

    def mesh(self, name: str) -> MeshSpec:
        """Return the mesh with the given name.

        Raises:
            ConfigError: No mesh has this name.
        """
        for mesh in self.meshes:
            if mesh.name == name:
                return mesh
        known = ", ".join(repr(mesh.name) for mesh in self.meshes) or "none"
        raise ConfigError(f"no mesh is named {name!r}: the job has {known}")

    def resized(self, name: str, hosts: int) -> JobSpec:
        """Return a copy of the spec with another number of hosts in one mesh.

        Raises:
            ConfigError: No mesh has this name, or the number is invalid.
        """
        changed = replace(self.mesh(name), hosts=hosts)
        meshes = tuple(changed if mesh.name == name else mesh for mesh in self.meshes)
        return replace(self, meshes=meshes)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads."""
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
        """Create a spec from the values that `to_json` returned.

        Raises:
            ConfigError: A value is invalid.
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
    """Return the path, the old value and the new value of each field that differs."""
    found: list[tuple[str, Any, Any]] = []
    _compare("", _by_name(old), _by_name(new), found)
    return found


def check_name(name: str, what: str) -> None:
    """Reject a name that is invalid for any scheduler, or for Python.

    Raises:
        ConfigError: The name is invalid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a valid name of a {what}: use at most 63 lower-case letters, digits, "
            "'-' and '_'; start with a letter, and do not end with '-' or '_'"
        )


def check_count(what: str, value: int, least: int) -> None:
    """Reject a value that is not a whole number of at least the given size.

    Raises:
        ConfigError: The value is not a whole number, or too small.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{what} is {value!r}: give a whole number, {least} or more")


def check_words(what: str, words: Sequence[str]) -> None:
    """Reject a string that is passed instead of a list of strings.

    Raises:
        ConfigError: The value is a string.
    """
    if isinstance(words, str):
        raise ConfigError(f"{what} is a list of strings: put brackets around the value")


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


def _check_json(what: str, value: Mapping[str, Any]) -> None:
    try:
        json.dumps(_plain(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{what} cannot be stored: {error}: use only numbers, strings, lists and mappings"
        ) from None


def _plain(value: Any) -> Any:
    """Return the value as a JSON round trip would, so that it compares equal to a stored one."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(one) for one in value]
    return value
