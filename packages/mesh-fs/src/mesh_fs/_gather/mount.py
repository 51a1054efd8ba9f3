"""A directory of every host of a mesh, mounted on the client."""

from __future__ import annotations

import atexit
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mesh_core import this_host
from mesh_fs import _core
from mesh_fs._errors import MountError
from mesh_fs._gather.gatherer import GatherController, Gatherer
from mesh_fs._options import GatherOptions

if TYPE_CHECKING:
    from types import TracebackType

    from mesh_core import HostMesh, ProcMesh

__all__ = ["GatherMount", "gather_mount"]


class GatherMount:
    """Directories of hosts that are mounted on this machine; created by `gather_mount`.

    Attributes:
        remote_mount_point: The directory on each host.
        local_mount_point: The mountpoint on this machine.
    """

    def __init__(
        self,
        host_mesh: HostMesh,
        remote_mount_point: str,
        local_mount_point: str,
        options: GatherOptions,
    ) -> None:
        self.remote_mount_point: str = remote_mount_point
        self.local_mount_point: str = local_mount_point
        # This needs a separate process: a process that reads the mount blocks in the kernel and
        # could not serve the read.
        self._procs: ProcMesh | None = this_host().spawn_procs(name="mesh-gather")
        try:
            gatherer = self._procs.spawn("gatherer", Gatherer, local_mount_point, options)
            self._gathering = self._procs.spawn(
                "gathering",
                GatherController,
                gatherer,
                host_mesh,
                remote_mount_point,
                local_mount_point,
                options,
            )
            self._gatherer = gatherer
            self._gathering.open.call_one().get()
        except BaseException:
            self._stop()
            raise
        # Unmount before the processes that the mount needs are stopped, which would cause delays.
        atexit.register(self.close)

    def cached_bytes(self) -> int:
        """Return the size of the file content that the client caches at the moment, in bytes.

        Raises:
            MountError: The mount is closed.
        """
        if self._procs is None:
            raise MountError(f"{self.local_mount_point!r} is closed: mount it again")
        return self._gatherer.cached_bytes.call_one().get()

    def close(self) -> None:
        """Unmount, even while files are open. Calling it again has no effect.

        Raises:
            MountError: Another mount covers it.
        """
        if self._procs is None:
            return
        try:
            self._gathering.close.call_one().get()
        finally:
            self._stop()

    def __enter__(self) -> GatherMount:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _stop(self) -> None:
        atexit.unregister(self.close)
        procs, self._procs = self._procs, None
        if procs is not None:
            procs.stop().get()


def gather_mount(
    host_mesh: HostMesh,
    remote_mount_point: str,
    local_mount_point: str | os.PathLike[str],
    *,
    options: GatherOptions | None = None,
) -> GatherMount:
    """Mount a directory of every host of a mesh on this machine, live and read-only.

    Each host has a folder named after its position, such as `hosts_0`; a mesh without dimensions,
    such as `this_host()`, is mounted without such a folder. Opening a file shows its current state,
    and later changes appear shortly after they are made: `tail -f` follows a log. Bytes are fetched
    when they are read, and ahead of sequential readers.

    Symbolic links are shown as on the host: a link with an absolute target points to a path of this
    machine. All files belong to the user of this program and cannot be written. The folder of a
    dead host remains, and every access to it fails with EIO; the other hosts are not affected. The
    mount is removed at the end of the program, however the program ends.

    Requires `torchmesh-fs[gather]`.

    Args:
        host_mesh: The hosts.
        remote_mount_point: The directory on each host; it may be created later. `$SUBDIR` is
            replaced by the host's position in the mesh, such as `hosts_0`.
        local_mount_point: The mountpoint on this machine: a directory that is empty or does not
            exist yet.
        options: Cache sizes, cache lifetimes, and timeouts.

    Returns:
        The open mount; also a context manager that closes it.

    Raises:
        MountError: Mounting has failed; `torchmesh-fs[gather]` is not installed; or the directory
            of a host contains the mountpoint.
        SupervisionError: A host is already lost.

    Example:
        >>> with gather_mount(hosts, "/var/log/trainer", "/mnt/logs"):
        ...     print(Path("/mnt/logs/hosts_0/loss.txt").read_text())
    """
    if find_spec("pyfuse3") is None:
        raise MountError("pyfuse3 is missing: install torchmesh-fs[gather]")
    if not os.path.isabs(remote_mount_point):
        raise MountError(
            f"{remote_mount_point!r} is a relative path: give the absolute path on the hosts"
        )
    _core.unmount_dead()
    point = os.path.realpath(local_mount_point)
    _prepare(point)
    return GatherMount(host_mesh, remote_mount_point, point, options or GatherOptions())


def _prepare(point: str) -> None:
    """Create the directory for the mount.

    Raises:
        MountError: The path is not a directory, or the directory is not empty.
    """
    try:
        os.makedirs(point, exist_ok=True)
        if os.listdir(point):
            raise MountError(f"{point!r} is not empty: give an empty directory")
    except OSError as error:
        raise MountError(f"nothing can be mounted at {point!r}: {error}") from error
