"""The actors that mount directories of hosts and manage the processes on the hosts."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core import Actor, MeshError, concurrent_endpoint, endpoint
from mesh_fs._errors import MountError
from mesh_fs._gather.host_client import HostClient
from mesh_fs._gather.shared_folder import SharedFolder, machine
from mesh_fs._subdirectory import subdirectory

if TYPE_CHECKING:
    from mesh_core import HostMesh, MeshFailure, ProcMesh
    from mesh_fs._gather.fuse_mount import FuseMount
    from mesh_fs._options import GatherOptions

__all__ = ["GatherController", "Gatherer"]


class Gatherer(Actor):
    """Owns the mount. It has a separate process, so that a program can read its own mount.

    Args:
        mountpoint: The mountpoint on this machine.
        options: Mount options.
    """

    def __init__(self, mountpoint: str, options: GatherOptions) -> None:
        self._mountpoint = mountpoint
        self._options = options
        self._mount: FuseMount | None = None

    @endpoint
    async def show(self, folders: SharedFolder, names: list[str]) -> None:
        """Mount the directories of the hosts.

        Raises:
            MountError: Mounting has failed.
        """
        # Every program imports this module, but only this process needs pyfuse3, which is optional.
        from mesh_fs._gather.fuse_mount import FuseMount  # noqa: PLC0415

        reader = f"{socket.gethostname()}/{os.getpid()}"
        clients = [
            HostClient(rank, os.fsencode(name), folder, reader, self._options.read_limit_s)
            for rank, (name, folder) in enumerate(zip(names, folders, strict=True))
        ]
        is_direct = names == [""]
        self._mount = await FuseMount.open(
            clients, self._mountpoint, self._options, is_direct=is_direct
        )

    @concurrent_endpoint
    async def cached_bytes(self) -> int:
        """Return the size of the cached file content, in bytes."""
        return 0 if self._mount is None else self._mount.cached_bytes

    @endpoint
    async def close(self) -> None:
        """Unmount."""
        await self._close()

    async def __cleanup__(self, error: Exception | None) -> None:
        with suppress(MountError):
            await self._close()

    async def _close(self) -> None:
        mount, self._mount = self._mount, None
        if mount is not None:
            await mount.close()


class GatherController(Actor):
    """Manages the processes on the hosts.

    It owns and supervises them, so the program survives their failures.

    Args:
        gatherer: The actor that mounts the directories.
        hosts: The hosts.
        root: The directory on each host. `$SUBDIR` is replaced by the host's position in the mesh.
        mountpoint: The mountpoint on the client.
        options: Mount options.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        hosts: HostMesh,
        root: str,
        mountpoint: str,
        options: GatherOptions,
    ) -> None:
        self._gatherer = gatherer
        self._hosts = hosts
        self._root = root
        self._mountpoint = mountpoint
        self._options = options
        self._procs: ProcMesh | None = None

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Continue with the other hosts."""
        return True

    @endpoint
    def open(self) -> None:
        """Mount the directories of all hosts, or none."""
        procs = self._procs = self._hosts.spawn_procs(name="mesh-gather")
        try:
            folders = procs.spawn(
                "mesh-gather", SharedFolder, self._root, self._options.watches_max
            )
            begun = folders.begin.call(machine(), self._mountpoint).get()
            names = [subdirectory(point) for point, _ in begun]
            self._gatherer.show.call_one(folders.flatten("host"), names).get()
        except BaseException:
            self._close()
            raise

    @endpoint
    def folders(self) -> ProcMesh | None:
        """Return the processes on the hosts."""
        return self._procs

    @endpoint
    def close(self) -> None:
        """Unmount."""
        self._close()

    def __cleanup__(self, error: Exception | None) -> None:
        with suppress(MeshError):
            self._close()

    def _close(self) -> None:
        procs, self._procs = self._procs, None
        if procs is None:
            return
        try:
            self._gatherer.close.call_one().get()
        finally:
            with suppress(MeshError):
                procs.stop().get()
