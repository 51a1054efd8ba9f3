"""A FUSE mount that this process serves until it is closed or the process exits."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyfuse3  # pyright: ignore[reportMissingImports]
import pyfuse3.asyncio  # pyright: ignore[reportMissingImports]

from mesh_fs import _core
from mesh_fs._errors import MountError
from mesh_fs._gather.fuse_operations import FuseOperations

if TYPE_CHECKING:
    from mesh_fs._gather.host_client import HostClient
    from mesh_fs._options import GatherOptions

__all__ = ["FuseMount"]

_DEVICE = "/dev/fuse"
#: The kernel's read-ahead, if this process may set it. Sequential reads arrive in requests of this
#: size.
_READ_AHEAD_BYTES = 1 << 20
#: The number of requests that are served concurrently; the kernel determines how many it sends.
_TASKS_MIN, _TASKS_MAX = 4, 100_000


class FuseMount:
    """Shows files at a mountpoint; a process has at most one instance."""

    def __init__(
        self,
        files: FuseOperations,
        point: str,
        mount: _core.GuardedMount,
        *,
        allow_other: bool,
    ) -> None:
        self._files = files
        self._mount = mount
        options = {*pyfuse3.default_options, f"fsname={mount.source}", "subtype=mesh", "ro"}
        if allow_other:
            options.add("allow_other")
        pyfuse3.asyncio.enable()
        # `FuseOperations` has no base class of pyfuse3, because type checkers may lack pyfuse3.
        operations: Any = files
        try:
            pyfuse3.init(operations, point, options)
        except RuntimeError as error:
            mount.dismiss()
            raise MountError(
                f"nothing can be mounted at {point!r}: {error}; see what libfuse has printed"
            ) from error
        self._is_closing = False
        self._devices: list[int] = []
        self._wait_never_in_read()
        self._serving = asyncio.create_task(self._serve())
        self._following = [asyncio.create_task(self._follow(client)) for client in files.clients]
        mount.set_read_ahead(_READ_AHEAD_BYTES)

    @classmethod
    async def open(
        cls,
        clients: list[HostClient],
        point: str,
        options: GatherOptions,
        *,
        is_direct: bool,
    ) -> FuseMount:
        """Mount the directories of hosts.

        Args:
            clients: The hosts.
            point: An empty directory.
            options: Mount options.
            is_direct: Whether the mount shows the directory of the only host itself, instead of one
                folder for each host.

        Raises:
            MountError: Mounting at the directory has failed.
        """
        files = FuseOperations(clients, options, is_direct=is_direct)
        name = f"mesh-gather-{socket.gethostname()}-{os.getpid()}"
        mount = await asyncio.to_thread(_core.GuardedMount, name)
        return cls(files, point, mount, allow_other=options.allow_other)

    @property
    def cached_bytes(self) -> int:
        """The size of the cached file content, in bytes."""
        return self._files.cached_bytes

    async def close(self) -> None:
        """Unmount, even while files are open.

        Raises:
            MountError: Another mount covers it.
        """
        self._is_closing = True
        failure: MountError | None = None
        try:
            await asyncio.to_thread(self._mount.unmount)
        except MountError as error:
            failure = error
        for task in self._following:
            task.cancel()
        # A notification may block in the kernel until a read completes, so reads are completed
        # first.
        await self._files.close()
        pyfuse3.terminate()
        await self._serving
        pyfuse3.close(unmount=False)
        if failure is not None:
            # The guardian tries again when this process exits.
            raise MountError(
                f"it cannot be unmounted: {failure}: check whether something is mounted over it"
            ) from failure
        self._mount.dismiss()

    async def _serve(self) -> None:
        while True:
            await pyfuse3.main(min_tasks=_TASKS_MIN, max_tasks=_TASKS_MAX)
            if self._is_closing or self._is_cut_off():
                return
            # All serving tasks have ended because requests were cancelled before they were read.
            # Restart.

    async def _follow(self, client: HostClient) -> None:
        """Process the changes that a host reports, until the host is lost."""
        while client.lost is None:
            try:
                changes = await client.changes()
            except OSError:
                continue
            self._files.on_changes(client, changes)
        self._files.on_lost(client)

    def _is_cut_off(self) -> bool:
        """Return whether the kernel sends no more requests, as after an external unmount."""
        poll = select.poll()
        for descriptor in self._devices:
            poll.register(descriptor, 0)
        return bool(poll.poll(0))

    def _wait_never_in_read(self) -> None:
        """Make the device non-blocking, because a blocking read would stop this process."""
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}") == _DEVICE:
                    descriptor = int(name)
                    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
                    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK)
                    self._devices.append(descriptor)
