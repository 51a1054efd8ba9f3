"""A mount that this process answers for, until it is closed or this process dies."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyfuse3  # pyright: ignore[reportMissingImports]
import pyfuse3.asyncio  # pyright: ignore[reportMissingImports]

from mesh_fs._errors import MountError
from mesh_fs._gather.fuse_operations import FuseOperations
from mesh_fs._mount import unmounter

if TYPE_CHECKING:
    from mesh_fs._gather.host_client import HostClient

__all__ = ["FuseMount"]

_DEVICE = "/dev/fuse"
#: What a program reads on is asked for in pieces of this size, where we may say so.
_READ_AHEAD_KIB = 1024
#: As many requests as the kernel likes are answered beside each other.
_TASKS_MIN, _TASKS_MAX = 4, 100_000


class FuseMount:
    """Shows files at a directory; there is one of them in a process."""

    def __init__(
        self,
        files: FuseOperations,
        point: str,
        source: str,
        guard: subprocess.Popen[bytes],
        *,
        allow_other: bool,
    ) -> None:
        self._files = files
        self._source = source
        self._guard = guard
        options = {*pyfuse3.default_options, f"fsname={self._source}", "subtype=mesh", "ro"}
        if allow_other:
            options.add("allow_other")
        pyfuse3.asyncio.enable()
        # They are not derived from its own: where types are checked it may not be there.
        operations: Any = files
        try:
            pyfuse3.init(operations, point, options)
        except RuntimeError as error:
            self._dismiss()
            raise MountError(
                f"nothing can be mounted at {point!r}: {error}; see what libfuse has printed"
            ) from error
        self._is_closing = False
        self._devices: list[int] = []
        self._wait_never_in_read()
        self._serving = asyncio.create_task(self._serve())
        self._following = [asyncio.create_task(self._follow(client)) for client in files.clients]
        for entry in unmounter.mounts_of(self._source):
            # Without the right to do this it goes on as is usual here.
            with suppress(OSError), open(_read_ahead_of(entry.device), "w") as setting:
                setting.write(str(_READ_AHEAD_KIB))

    @classmethod
    async def open(cls, files: FuseOperations, point: str, *, allow_other: bool) -> FuseMount:
        """Mounts it.

        Args:
            files: What is shown.
            point: An empty directory.
            allow_other: Whether other users may read it.

        Raises:
            MountError: Nothing can be mounted there.
        """
        source = f"mesh-gather-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        guard = await asyncio.to_thread(_guard, source)
        return cls(files, point, source, guard, allow_other=allow_other)

    @property
    def held_bytes(self) -> int:
        """How many bytes of files are cached."""
        return self._files.held_bytes

    async def close(self) -> None:
        """Takes it away, also while files are open.

        Raises:
            MountError: Something else is mounted over it.
        """
        self._is_closing = True
        why = await asyncio.to_thread(unmounter.unmount, self._source)
        for task in self._following:
            task.cancel()
        # The kernel may wait for a read while it is told something: that is answered first.
        await self._files.close()
        pyfuse3.terminate()
        await self._serving
        pyfuse3.close(unmount=False)
        if why is not None:
            # With the end of this process the guard tries it once more.
            raise MountError(f"it cannot be unmounted: {why}: look for what is mounted over it")
        self._dismiss()

    async def _serve(self) -> None:
        while True:
            await pyfuse3.main(min_tasks=_TASKS_MIN, max_tasks=_TASKS_MAX)
            if self._is_closing or self._is_cut_off():
                return
            # For each task that reads, a request was taken back before it was read: begin anew.

    async def _follow(self, client: HostClient) -> None:
        """Takes in what changes on a host, until that is lost."""
        while client.lost is None:
            try:
                changes = await client.changes()
            except OSError:
                continue
            self._files.on_changes(client, changes)
        self._files.on_lost(client)

    def _is_cut_off(self) -> bool:
        """Whether the kernel does not ask any more: somebody else has unmounted it, say."""
        poll = select.poll()
        for descriptor in self._devices:
            poll.register(descriptor, 0)
        return bool(poll.poll(0))

    def _wait_never_in_read(self) -> None:
        """Has a read of the device fail when there is nothing, or it would stop this process."""
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}") == _DEVICE:
                    descriptor = int(name)
                    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
                    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK)
                    self._devices.append(descriptor)

    def _dismiss(self) -> None:
        with suppress(OSError):
            self._guard.communicate(unmounter.CLOSED)


def _guard(source: str) -> subprocess.Popen[bytes]:
    """Starts what unmounts when this process dies."""
    words = [sys.executable, "-I", "-S", unmounter.__file__, source]
    try:
        guard = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise MountError(f"{sys.executable!r} cannot be started to unmount: {error}") from error
    assert guard.stdout is not None, "it was asked for"
    if guard.stdout.read(1) != unmounter.READY:
        guard.kill()
        raise MountError(f"{sys.executable!r} has ended before there was anything to unmount")
    return guard


def _read_ahead_of(device: bytes) -> str:
    return f"/sys/class/bdi/{os.fsdecode(device)}/read_ahead_kb"
