"""Checks whether and how hosts can mount files: `mesh doctor fs`."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mesh_core import Actor, endpoint
from mesh_fs._options import CacheOptions

if TYPE_CHECKING:
    from mesh_core import HostMesh

__all__ = ["Diagnosis", "HostAbilities", "examine_hosts"]

_LITTLE_BYTES = 1 << 30


@dataclass(frozen=True)
class HostAbilities:
    """The abilities of a host to show files.

    Attributes:
        host: The name of the machine.
        is_root: Whether its processes run as root.
        has_device: Whether its processes may open `/dev/fuse`.
        has_fusermount: Whether `fusermount3` is installed.
        store: The folder in which it keeps chunks.
        free_bytes: The free space on the file system of that folder.
    """

    host: str
    is_root: bool
    has_device: bool
    has_fusermount: bool
    store: str
    free_bytes: int

    @property
    def backend(self) -> str:
        """The method by which the host shows a directory."""
        can_mount = self.has_device and (self.is_root or self.has_fusermount)
        return "fuse" if can_mount else "unpack"

    @property
    def findings(self) -> list[str]:
        """The problems to fix."""
        found = []
        if not self.has_device:
            found.append(
                "/dev/fuse cannot be opened: load the kernel module fuse, or give the container "
                "the device; until then, files are written to disk"
            )
        elif self.backend == "unpack":
            found.append(
                "fusermount3 is missing: install the package fuse3; until then, files are written "
                "to disk"
            )
        if self.free_bytes < _LITTLE_BYTES:
            found.append(
                f"{self.free_bytes >> 20} MiB free at {self.store}: free some space, or set "
                "MESH_FS_CACHE to another folder"
            )
        return [f"{self.host}: {one}" for one in found]


@dataclass(frozen=True)
class Diagnosis:
    """The abilities of all hosts of a mesh. Its string form is the report for the user.

    Attributes:
        hosts: The abilities of each host.
    """

    hosts: tuple[HostAbilities, ...]

    @property
    def findings(self) -> list[str]:
        """The problems to fix."""
        return [finding for host in self.hosts for finding in host.findings]

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as plain values."""
        hosts = [{**asdict(host), "backend": host.backend} for host in self.hosts]
        return {"hosts": hosts, "findings": self.findings}

    def __str__(self) -> str:
        lines = [
            f"{one.host}: {one.backend}, {one.free_bytes / 1e9:.1f} GB free at {one.store}"
            for one in self.hosts
        ]
        return "\n".join([*lines, *(self.findings or ["no problems found"])])


class _HostExaminer(Actor):
    @endpoint
    def examine(self) -> HostAbilities:
        store = CacheOptions().place()
        above = next(one for one in (store, *store.parents) if one.is_dir())
        return HostAbilities(
            host=socket.gethostname(),
            is_root=os.geteuid() == 0,
            has_device=os.access("/dev/fuse", os.R_OK | os.W_OK),
            has_fusermount=shutil.which("fusermount3") is not None,
            store=str(store),
            free_bytes=shutil.disk_usage(above).free,
        )


def examine_hosts(hosts: HostMesh) -> Diagnosis:
    """Check the abilities of each host of a mesh to show files.

    Args:
        hosts: The hosts.

    Raises:
        SupervisionError: A host is lost.
    """
    procs = hosts.spawn_procs(name="mesh-fs-doctor")
    try:
        abilities = procs.spawn("examined", _HostExaminer).examine.call().get()
        return Diagnosis(tuple(abilities.values()))
    finally:
        procs.stop().get()
