"""A directory of every host of a mesh, on the client."""

from __future__ import annotations

import atexit
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mesh_core import this_host
from mesh_fs._errors import MountError
from mesh_fs._gather.gatherer import GatherController, Gatherer
from mesh_fs._mount.stale_mounts import unmount_dead
from mesh_fs._options import GatherOptions

if TYPE_CHECKING:
    from types import TracebackType

    from mesh_core import HostMesh, ProcMesh

__all__ = ["GatherMount", "gather_mount"]


class GatherMount:
    """Directories of hosts that are mounted here; made by `gather_mount`.

    Attributes:
        remote_mount_point: The directory on each host.
        local_mount_point: Where they are here.
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
        # In a process of its own: who reads the mount waits in the kernel, and answers nobody.
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
        # Before all that it needs is ended, which would take its time.
        atexit.register(self.close)

    def cached_bytes(self) -> int:
        """Says how many bytes of files the client keeps at the moment.

        Raises:
            MountError: It is closed.
        """
        if self._procs is None:
            raise MountError(f"{self.local_mount_point!r} is closed: mount it again")
        return self._gatherer.held_bytes.call_one().get()

    def close(self) -> None:
        """Unmounts it, also while files of it are open. Twice is the same as once.

        Raises:
            MountError: Something else is mounted over it.
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
    """Shows a directory of every host of a mesh on this machine, read-only, as it is at any time.

    There is one folder for each host, called after its place, as `hosts_0`; a mesh without
    dimensions, as `this_host()`, is mounted without such a folder. Who opens a file sees it as it
    is then, and what changes afterwards shortly after: `tail -f` follows a log. Bytes are fetched
    as they are read, and ahead of who reads on.

    Symlinks are shown as they are on the host: one with an absolute target points to a path of this
    machine. All files belong to the user of this program, and nobody may write them. A host that
    dies keeps its folder, and whatever is done there fails with EIO; the others go on. It is
    unmounted at the end of the program, however that ends.

    Needs `mesh-fs[gather]`.

    Args:
        host_mesh: Whose directories.
        remote_mount_point: The directory on each host; it may come into being later. `$SUBDIR` in
            it stands for the host's place in the mesh, as `hosts_0`.
        local_mount_point: Where they are mounted here: a directory that is empty, or not there yet.
        options: What is cached, for how long, and how long hosts may take to answer.

    Returns:
        What closes it; a context manager. It is mounted.

    Raises:
        MountError: It cannot be mounted there; `mesh-fs[gather]` is not installed; or a host would
            show the mount in itself.
        SupervisionError: A host is lost already.

    Example:
        >>> with gather_mount(hosts, "/var/log/trainer", "/mnt/logs"):
        ...     print(Path("/mnt/logs/hosts_0/loss.txt").read_text())
    """
    if find_spec("pyfuse3") is None:
        raise MountError("pyfuse3 is missing: install mesh-fs[gather]")
    if not os.path.isabs(remote_mount_point):
        raise MountError(
            f"{remote_mount_point!r} is a relative path: give the whole path, as hosts know it"
        )
    unmount_dead()
    point = os.path.realpath(local_mount_point)
    _prepare(point)
    return GatherMount(host_mesh, remote_mount_point, point, options or GatherOptions())


def _prepare(point: str) -> None:
    """Makes the directory to mount at.

    Raises:
        MountError: It is none, or is not empty.
    """
    try:
        os.makedirs(point, exist_ok=True)
        if os.listdir(point):
            raise MountError(f"{point!r} is not empty: give a directory that is")
    except OSError as error:
        raise MountError(f"nothing can be mounted at {point!r}: {error}") from error
