"""Looks after the mounts of one directory: on which hosts, of which snapshot."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core import Actor, MeshError, SupervisionError, endpoint, this_host
from mesh_fs._errors import SnapshotError
from mesh_fs._host_files import HostFiles, HostStatus
from mesh_fs._source import Source
from mesh_fs._watcher import Watcher

if TYPE_CHECKING:
    from typing import Any

    from mesh_core import HostMesh, MeshFailure, ProcMesh, ValueMesh
    from mesh_fs._options import CacheOptions, MountOptions, SnapshotOptions
    from mesh_fs._source import Taken

__all__ = ["Keeper"]


class Keeper(Actor):
    """Has hosts show what a source has.

    The process of the source and those on the hosts are its own: it hears of their ends, and the
    program goes on. It lives in the program, and as long.

    Args:
        root: The directory.
        snapshot: What of it is taken.
        hosts: Where it is to be shown.
        mountpoint: Where on each host; `$SUBDIR` in it stands for the host's place in the mesh.
        cache: Where hosts keep chunks.
        options: How the tree is shown.
    """

    def __init__(
        self,
        root: str,
        snapshot: SnapshotOptions,
        hosts: HostMesh,
        mountpoint: str,
        cache: CacheOptions,
        options: MountOptions,
    ) -> None:
        self._root = root
        self._snapshot = snapshot
        self._hosts = hosts
        self._mountpoint = mountpoint
        self._cache = cache
        self._options = options
        self._owned: list[ProcMesh] = []
        self._source: Source | None = None
        self._files: HostFiles | None = None
        self._watcher: Watcher | None = None
        self._shown = b""

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Goes on with the other hosts; those that fetched from a lost one ask the next."""
        return True

    @endpoint
    def open(self) -> tuple[str, ...]:
        """Shows the directory everywhere, or nowhere; gives what could not be read of it."""
        try:
            # In a process of its own: it hashes and serves while the program computes.
            near = this_host().spawn_procs(name="mesh-fs-source")
            self._owned.append(near)
            source = near.spawn("source", Source, self._root, self._snapshot)
            walk = source.take.call_one()
            # While it walks, the hosts get ready.
            far = self._hosts.spawn_procs(name="mesh-fs")
            self._owned.append(far)
            files = far.spawn("mesh-fs", HostFiles, self._mountpoint, self._cache, self._options)
            self._source, self._files = source, files
            files.follow.call(files.flatten("host"), source).get()
            taken = walk.get()
            files.show.call(taken.recipe).get()
        except BaseException:
            self._close()
            raise
        self._shown = taken.id
        return taken.skipped

    @endpoint
    def refresh(self) -> bool:
        """Shows the directory as it is now on all hosts that are left; says whether it is new."""
        taken = self._take()
        if taken.id == self._shown:
            return False
        shown = self._opened().show.options(return_exceptions=True).call(taken.recipe).get()
        answers = shown.values()
        errors = [answer for answer in answers if isinstance(answer, MeshError)]
        if len(errors) == len(answers):
            raise errors[0]
        self._shown = taken.id
        return True

    @endpoint
    def status(self, is_complete: bool) -> ValueMesh[HostStatus | MeshError]:
        """Says how far each host is; waits until all have everything if that is asked for."""
        files = self._opened()
        asked = files.complete if is_complete else files.status
        statuses: ValueMesh[Any] = asked.options(return_exceptions=True).call().get()
        return statuses

    @endpoint
    def watch(self, keeper: Keeper) -> None:
        """Refreshes whenever the directory has changed; `keeper` is the handle of this actor."""
        if self._watcher is not None:
            return
        assert self._source is not None, "the handler asks only between `open` and `close`"
        near = self._owned[0]
        watcher = near.spawn("watcher", Watcher, self._root, self._source, keeper)
        try:
            watcher.begin.call_one().get()
        except BaseException:
            watcher.stop().get()
            raise
        self._watcher = watcher

    @endpoint
    def sent_bytes(self) -> int:
        """Says how many bytes have left the client."""
        assert self._source is not None, "the handler asks only between `open` and `close`"
        return self._source.served_bytes.call_one().get()

    @endpoint
    def close(self) -> None:
        """Shows nothing any more, anywhere."""
        self._close()

    def __cleanup__(self, error: Exception | None) -> None:
        self._close()

    def _take(self) -> Taken:
        assert self._source is not None, "the handler asks only between `open` and `close`"
        try:
            return self._source.take.call_one().get()
        except SupervisionError as error:
            raise SnapshotError(
                f"the process that reads {self._root!r} has ended: close() and open() it again"
            ) from error

    def _close(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            with suppress(MeshError):
                watcher.end.call_one().get()
        files, self._files, self._source = self._files, None, None
        owned, self._owned = self._owned, []
        if files is not None:
            # A host that is lost shows nothing either.
            with suppress(MeshError):
                files.close.options(return_exceptions=True).call().get()
        stops = [procs.stop() for procs in reversed(owned)]
        for stop in stops:
            with suppress(MeshError):
                stop.get()

    def _opened(self) -> HostFiles:
        assert self._files is not None, "the handler asks only between `open` and `close`"
        return self._files
