"""Gathers directories of hosts: starts who answers there, and shows what they answer."""

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
    """Owns the mount; in a process of its own, so that a program can read its own mount.

    Args:
        mountpoint: Where on this machine.
        options: How it is shown.
    """

    def __init__(self, mountpoint: str, options: GatherOptions) -> None:
        self._mountpoint = mountpoint
        self._options = options
        self._mount: FuseMount | None = None

    @endpoint
    async def show(self, folders: SharedFolder, names: list[str]) -> None:
        """Mounts what hosts answer.

        Raises:
            MountError: Nothing can be mounted there.
        """
        # Who mounts nothing needs not have pyfuse3.
        from mesh_fs._gather.fuse_mount import FuseMount
        from mesh_fs._gather.fuse_operations import FuseOperations

        reader = f"{socket.gethostname()}/{os.getpid()}"
        clients = [
            HostClient(rank, os.fsencode(name), folder, reader, self._options.read_limit_s)
            for rank, (name, folder) in enumerate(zip(names, folders, strict=True))
        ]
        is_direct = names == [""]
        files = FuseOperations(clients, self._options, is_direct=is_direct)
        allow_other = self._options.allow_other
        self._mount = await FuseMount.open(files, self._mountpoint, allow_other=allow_other)

    @concurrent_endpoint
    async def held_bytes(self) -> int:
        """Says how many bytes of files are cached."""
        return 0 if self._mount is None else self._mount.held_bytes

    @endpoint
    async def close(self) -> None:
        """Unmounts it."""
        await self._close()

    async def __cleanup__(self, error: Exception | None) -> None:
        with suppress(MountError):
            await self._close()

    async def _close(self) -> None:
        mount, self._mount = self._mount, None
        if mount is not None:
            await mount.close()


class GatherController(Actor):
    """Looks after the processes on the hosts.

    They are its own: it hears of their ends, and the program goes on.

    Args:
        gatherer: Shows what they answer.
        hosts: Where they are.
        root: The directory of each host; `$SUBDIR` in it stands for the host's place in the mesh.
        mountpoint: Where it is shown.
        options: How it is shown.
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
        """Goes on with the other hosts."""
        return True

    @endpoint
    def open(self) -> None:
        """Shows the directories of all hosts, or nothing."""
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
        """Gives the processes on the hosts."""
        return self._procs

    @endpoint
    def close(self) -> None:
        """Shows nothing any more."""
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
