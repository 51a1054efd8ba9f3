"""A directory of the client, mounted on every host of a mesh."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from mesh_core import Extent, ValueMesh, this_proc
from mesh_fs._errors import MountError, SnapshotError
from mesh_fs._mount.controller import MountController
from mesh_fs._mount.progress import TransferProgress, progress_reporter
from mesh_fs._options import CacheOptions, MountOptions, SnapshotOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Any

    from mesh_core import Future, HostMesh, MeshError
    from mesh_fs._mount.host_mount import HostStatus

__all__ = ["MountHandler", "remotemount"]

#: The interval at which hosts are queried to show progress.
_PROGRESS_S = 0.2


class MountHandler:
    """A directory of the client and its mounts; created by `remotemount`.

    Attributes:
        sourcepath: The directory.
        mntpoint: The mountpoint on each host.
        skipped: The paths that could not be read and were omitted.
    """

    def __init__(
        self,
        host_mesh: HostMesh,
        sourcepath: str,
        mntpoint: str,
        snapshot: SnapshotOptions,
        mount: MountOptions,
        cache: CacheOptions,
        is_watched: bool,
    ) -> None:
        self.sourcepath: str = sourcepath
        self.mntpoint: str = mntpoint
        self.skipped: tuple[str, ...] = ()
        self._hosts = host_mesh
        self._snapshot = snapshot
        self._mount = mount
        self._cache = cache
        self._controller: MountController | None = None
        self._is_watched = is_watched

    def open(self) -> MountHandler:
        """Mount the directory on all hosts. Files are fetched on demand and in the background.

        Raises:
            SnapshotError: A consistent snapshot of the directory could not be taken.
            MountError: A host cannot show the directory; it is then not shown on any host.
            StoreError: A host cannot store files.
            RuntimeError: The mount is already open.
        """
        if self._controller is not None:
            raise RuntimeError("it is already mounted: use refresh() to show changes")
        controller = this_proc().spawn(
            "mesh-fs-controller",
            MountController,
            self.sourcepath,
            self._snapshot,
            self._cache,
            self._mount,
        )
        try:
            self.skipped = controller.open.call_one(controller, self._hosts, self.mntpoint).get()
        except BaseException as error:
            stopped = controller.stop()
            # Do not wait for a host if the user has interrupted the program.
            if isinstance(error, Exception):
                stopped.get()
            raise
        self._controller = controller
        if self._is_watched:
            try:
                self.watch()
            except BaseException:
                self.close()
                raise
        return self

    def refresh(self) -> bool:
        """Show the current state of the directory; return whether anything has changed.

        Unchanged files stay cached on the hosts, and only differences are sent. A process that has
        an edited file open keeps reading the old content, and sees the new content when it opens
        the file again. A killed process of the mount is restarted.

        Raises:
            SnapshotError: A consistent snapshot of the directory could not be taken.
            MountError: The mount is not open, or no host can show the directory any more.
            StoreError: A host has no space and keeps the previous state; the other hosts show the
                new one.
        """
        return self._require_open().refresh.call_one().get()

    def add_hosts(self, host_mesh: HostMesh, mntpoint: str | os.PathLike[str] | None = None) -> int:
        """Show the directory on more hosts, of another mesh or of a larger slice.

        They fetch from the existing hosts; the client sends nothing again. They are refreshed,
        watched and closed with the others.

        Args:
            host_mesh: The hosts. Hosts that already show the directory are not changed.
            mntpoint: The mountpoint on these hosts. Default: the same as on the others. `$SUBDIR`
                is replaced by the position in this mesh.

        Returns:
            The number of hosts that were added.

        Raises:
            MountError: The mount is not open, or one of the hosts cannot show the directory; then
                none of them is added.
            StoreError: One of the hosts cannot store files.

        Example:
            >>> files = remotemount(job.state().trainers, "project", "/mnt/project").open()
            >>> files.add_hosts(job.state().readers)
            4
        """
        there = self.mntpoint if mntpoint is None else _absolute(os.fspath(mntpoint))
        controller = self._require_open()
        return controller.add.call_one(controller, host_mesh, there).get()

    def watch(self) -> None:
        """Refresh the mount automatically from now on, whenever the directory changes.

        Hosts see a change shortly after it was made; several changes in quick succession are
        combined. A refresh that fails, for example because a file is being written continuously, is
        logged and retried. Calling it again has no effect.

        Raises:
            WatchError: The tree contains too many directories; `refresh()` still works.
            MountError: The mount is not open.
        """
        controller = self._require_open()
        controller.watch.call_one(controller).get()

    def status(self) -> ValueMesh[HostStatus | MeshError]:
        """Return the status of each host; a lost host has an error instead.

        The result has the dimensions of the mesh. After `add_hosts`, it has the single dimension
        `hosts` with all hosts.
        """
        files = self._require_open().host_files.call_one().get()
        return self._collect([one.status.options(return_exceptions=True).call() for one in files])

    def wait(
        self, timeout: float | None = None, *, progress: bool | None = False
    ) -> ValueMesh[HostStatus | MeshError]:
        """Wait until every host has all available files, and return the status of each host.

        Args:
            timeout: The maximum time to wait, in seconds. Default: no limit.
            progress: Whether to show progress on stderr while waiting: as a bar if stderr is a
                terminal and `torchmesh-fs[progress]` is installed, otherwise as a line each second.
                None shows it only on a terminal.

        Raises:
            TimeoutError: Some host does not have all files in time. The transfers continue.
        """
        latest = None if timeout is None else time.monotonic() + timeout
        files = self._require_open().host_files.call_one().get()
        completions = [one.complete.options(return_exceptions=True).call() for one in files]
        with progress_reporter(progress) as report:
            while True:
                left_s = None if latest is None else max(0.0, latest - time.monotonic())
                step_s = left_s if report is None else min(_PROGRESS_S, left_s or _PROGRESS_S)
                try:
                    for completion in completions:
                        completion.get(step_s)
                except TimeoutError:
                    if report is None or (left_s is not None and left_s <= 0):
                        raise
                    report(TransferProgress.of(self.status().values()))
                    continue
                statuses = self._collect(completions)
                if report is not None:
                    report(TransferProgress.of(statuses.values()))
                return statuses

    def explain(self) -> str:
        """Return a text that names, for each host, the method by which it shows files and why."""
        lines = []
        for point, host in self.status():
            place = ", ".join(f"{label}={at}" for label, at in point.items()) or "host"
            words = f"{host}" if isinstance(host, Exception) else f"{host.backend}, as {host.why}"
            lines.append(f"{place}: {words}")
        return "\n".join(lines)

    def sent_bytes(self) -> int:
        """Return the number of bytes that the client has sent for this mount."""
        return self._require_open().sent_bytes.call_one().get()

    def close(self) -> None:
        """Unmount on all hosts, even while files are open. Calling it again has no effect."""
        controller, self._controller = self._controller, None
        if controller is not None:
            controller.close.call_one().get()
            controller.stop().get()

    def __enter__(self) -> MountHandler:
        return self if self._controller is not None else self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _collect(
        self, pending: Sequence[Future[ValueMesh[Any]]]
    ) -> ValueMesh[HostStatus | MeshError]:
        values = [value for call in pending for value in call.get().values()]
        is_one_mesh = len(pending) == 1
        extent = self._hosts.extent if is_one_mesh else Extent(["hosts"], [len(values)])
        return ValueMesh(extent, values)

    def _require_open(self) -> MountController:
        if self._controller is None:
            raise MountError(f"{self.sourcepath!r} is not mounted: call open() first")
        return self._controller


def remotemount(
    host_mesh: HostMesh,
    sourcepath: str | os.PathLike[str],
    mntpoint: str | os.PathLike[str] | None = None,
    *,
    snapshot: SnapshotOptions | None = None,
    mount: MountOptions | None = None,
    cache: CacheOptions | None = None,
    watch: bool = False,
) -> MountHandler:
    """Show a directory of this machine on every host of a mesh, read-only.

    Each byte leaves this machine once, regardless of the number of hosts. Hosts keep the data that
    they have received: the next mount, of this or another program, fetches only differences.

    Args:
        host_mesh: The hosts.
        sourcepath: The directory.
        mntpoint: The mountpoint on the hosts: a directory that is empty or does not exist yet.
            Default: the same path as on this machine. `$SUBDIR` is replaced by the host's position
            in the mesh, such as `hosts_0`; this is required if several hosts are the same machine.
        snapshot: Snapshot options, such as patterns of files to exclude.
        mount: Mount options.
        cache: The location and size limit of the chunks on the hosts.
        watch: Refresh the mount whenever the directory changes; see `MountHandler.watch`.

    Returns:
        A handle to open, refresh and close the mount; also a context manager.

    Raises:
        SnapshotError: `sourcepath` is not a directory.

    Example:
        >>> with remotemount(hosts, "project", "/mnt/project") as project:
        ...     procs.spawn("trainer", Trainer, "/mnt/project/config.toml")
    """
    source = os.path.abspath(sourcepath)
    if not os.path.isdir(source):
        raise SnapshotError(f"{source!r} is not a directory: give a directory")
    there = source if mntpoint is None else os.fspath(mntpoint)
    return MountHandler(
        host_mesh,
        source,
        _absolute(there),
        snapshot or SnapshotOptions(),
        mount or MountOptions(),
        cache or CacheOptions(),
        is_watched=watch,
    )


def _absolute(there: str) -> str:
    if not os.path.isabs(there):
        raise MountError(f"{there!r} is a relative path: give the absolute path on the hosts")
    return there
