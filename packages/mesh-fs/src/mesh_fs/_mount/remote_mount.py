"""A directory of the client, on every host of a mesh."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from mesh_core import Extent, ValueMesh, this_proc
from mesh_fs._errors import MountError, SnapshotError
from mesh_fs._mount.controller import MountController
from mesh_fs._mount.progress import Arrived, shown_progress
from mesh_fs._options import CacheOptions, MountOptions, SnapshotOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Any

    from mesh_core import Future, HostMesh, MeshError
    from mesh_fs._mount.host_mount import HostStatus

__all__ = ["MountHandler", "remotemount"]

#: How often hosts are asked how far they are, for who wants to see it.
_PROGRESS_S = 0.2


class MountHandler:
    """One directory of the client, and its mounts; made by `remotemount`.

    Attributes:
        sourcepath: The directory.
        mntpoint: Where it is on each host.
        skipped: What could not be read of it, and was left out.
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
        """Mounts it everywhere; files come as they are read, and all of them in the background.

        Raises:
            SnapshotError: The directory cannot be read as it is at one moment.
            MountError: A host cannot show it there; it is shown nowhere then.
            StoreError: A host cannot keep files.
            RuntimeError: It is open already.
        """
        if self._controller is not None:
            raise RuntimeError("it is mounted already: use refresh() to show what has changed")
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
            # Whoever interrupts the program does not want to wait for a host.
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
        """Shows the directory as it is now; says whether anything has changed.

        What is the same stays cached on the hosts, and only what is different is sent. Who has a
        file open that was edited reads on in what it was, and sees what it is on opening it again.
        Where the process that shows it was killed, another one is started.

        Raises:
            SnapshotError: The directory cannot be read as it is at one moment.
            MountError: It is not open, or no host can show it any more.
            StoreError: A host has no room for it, and shows what it did before; the others show it.
        """
        return self._opened().refresh.call_one().get()

    def add_hosts(self, host_mesh: HostMesh, mntpoint: str | os.PathLike[str] | None = None) -> int:
        """Shows it on further hosts as well, as on those of another mesh, or of a larger slice.

        They fetch from the hosts that have it; the client sends nothing again. They are refreshed,
        watched and closed with the others.

        Args:
            host_mesh: Where; hosts that show it already are left as they are.
            mntpoint: Where it is on them; as on the others if left out. `$SUBDIR` stands for the
                place in this mesh.

        Returns:
            How many hosts have come.

        Raises:
            MountError: It is not open, or one of them cannot show it there: none of them does then.
            StoreError: One of them cannot keep files.

        Example:
            >>> files = remotemount(job.state().trainers, "project", "/mnt/project").open()
            >>> files.add_hosts(job.state().readers)
            4
        """
        there = self.mntpoint if mntpoint is None else _absolute(os.fspath(mntpoint))
        controller = self._opened()
        return controller.add.call_one(controller, host_mesh, there).get()

    def watch(self) -> None:
        """Refreshes by itself from now on, whenever the directory has changed.

        A change is seen on the hosts a moment after it was made; many at once are seen together.
        What cannot be shown, as while a file is being written all the time, is logged and tried
        again. Twice is the same as once.

        Raises:
            WatchError: The directory has too many directories; `refresh()` goes on to work.
            MountError: It is not open.
        """
        controller = self._opened()
        controller.watch.call_one(controller).get()

    def status(self) -> ValueMesh[HostStatus | MeshError]:
        """Says how far each host is; the error stands for a host that is lost.

        It has the dimensions of the mesh; where hosts were added, all are in one, `hosts`.
        """
        shown = self._opened().shown.call_one().get()
        return self._told([one.status.options(return_exceptions=True).call() for one in shown])

    def wait(
        self, timeout: float | None = None, *, progress: bool | None = False
    ) -> ValueMesh[HostStatus | MeshError]:
        """Waits until every host has every file that can be had, and says how they are.

        Args:
            timeout: For how many seconds; without a limit if left out.
            progress: Show on stderr meanwhile how far it is: by a bar where that is a terminal and
                `mesh-fs[progress]` is installed, else by a line each second. None shows it on a
                terminal alone.

        Raises:
            TimeoutError: They have not after so many seconds; they go on.
        """
        latest = None if timeout is None else time.monotonic() + timeout
        shown = self._opened().shown.call_one().get()
        ends = [one.complete.options(return_exceptions=True).call() for one in shown]
        with shown_progress(progress) as tell:
            while True:
                left_s = None if latest is None else max(0.0, latest - time.monotonic())
                step_s = left_s if tell is None else min(_PROGRESS_S, left_s or _PROGRESS_S)
                try:
                    for end in ends:
                        end.get(step_s)
                except TimeoutError:
                    if tell is None or (left_s is not None and left_s <= 0):
                        raise
                    tell(Arrived.of(self.status().values()))
                    continue
                told = self._told(ends)
                if tell is not None:
                    tell(Arrived.of(told.values()))
                return told

    def explain(self) -> str:
        """Says, for each host, how it shows the directory and why in this way."""
        lines = []
        for point, host in self.status():
            place = ", ".join(f"{label}={at}" for label, at in point.items()) or "host"
            words = f"{host}" if isinstance(host, Exception) else f"{host.way}, as {host.why}"
            lines.append(f"{place}: {words}")
        return "\n".join(lines)

    def sent_bytes(self) -> int:
        """Says how many bytes have left the client for this mount."""
        return self._opened().sent_bytes.call_one().get()

    def close(self) -> None:
        """Unmounts it everywhere, also while files of it are open. Twice is the same as once."""
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

    def _told(self, answers: Sequence[Future[ValueMesh[Any]]]) -> ValueMesh[HostStatus | MeshError]:
        values = [value for answer in answers for value in answer.get().values()]
        is_one_mesh = len(answers) == 1
        extent = self._hosts.extent if is_one_mesh else Extent(["hosts"], [len(values)])
        return ValueMesh(extent, values)

    def _opened(self) -> MountController:
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
    """Shows a directory of this machine on every host of a mesh, read-only.

    Each byte leaves this machine once, whatever the number of hosts. A host keeps what it has got:
    the next mount, of this program or another, fetches what is different.

    Args:
        host_mesh: Where.
        sourcepath: The directory.
        mntpoint: Where it is on the hosts, a directory that is empty or not there yet; the same
            path as here if left out. `$SUBDIR` in it stands for the host's place in the mesh, as
            `hosts_0`: needed where several hosts are one machine.
        snapshot: What of the directory is taken.
        mount: How it is shown.
        cache: Where the hosts keep chunks.
        watch: Show changes as they are made; see `MountHandler.watch`.

    Returns:
        What opens, refreshes and closes it; a context manager.

    Raises:
        SnapshotError: `sourcepath` is no directory.

    Example:
        >>> with remotemount(hosts, "project", "/mnt/project") as project:
        ...     procs.spawn("trainer", Trainer, "/mnt/project/config.toml")
    """
    source = os.path.abspath(sourcepath)
    if not os.path.isdir(source):
        raise SnapshotError(f"{source!r} is no directory: give one that is")
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
        raise MountError(f"{there!r} is a relative path: give the whole path, as hosts know it")
    return there
