"""Looks after the mounts of one directory: on which hosts, of which snapshot."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core import Actor, MeshError, endpoint
from mesh_fs._host_files import HostFiles, HostStatus

if TYPE_CHECKING:
    from typing import Any

    from mesh_core import HostMesh, MeshFailure, ProcMesh, ValueMesh
    from mesh_fs._options import CacheOptions, MountOptions
    from mesh_fs._source import Source

__all__ = ["Keeper"]


class Keeper(Actor):
    """Has hosts show what a source has.

    The processes on the hosts are its own: it hears of their ends, and the program goes on.

    Args:
        source: Serves the directory.
        hosts: Where it is to be shown.
        mountpoint: Where on each host; `$SUBDIR` in it stands for the host's place in the mesh.
        cache: Where hosts keep chunks.
        options: How the tree is shown.
    """

    def __init__(
        self,
        source: Source,
        hosts: HostMesh,
        mountpoint: str,
        cache: CacheOptions,
        options: MountOptions,
    ) -> None:
        self._source = source
        self._hosts = hosts
        self._mountpoint = mountpoint
        self._cache = cache
        self._options = options
        self._procs: ProcMesh | None = None
        self._files: HostFiles | None = None
        self._shown = b""

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Goes on with the other hosts; those that fetched from a lost one ask the next."""
        return True

    @endpoint
    def open(self) -> tuple[str, ...]:
        """Shows the directory everywhere, or nowhere; gives what could not be read of it."""
        walk = self._source.take.call_one()
        # While it walks, the hosts get ready.
        self._procs = self._hosts.spawn_procs(name="mesh-fs")
        files = self._procs.spawn(
            "mesh-fs", HostFiles, self._mountpoint, self._cache, self._options
        )
        self._files = files
        try:
            files.follow.call(files.flatten("host"), self._source).get()
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
        taken = self._source.take.call_one().get()
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
    def close(self) -> None:
        """Shows nothing any more, anywhere."""
        self._close()

    def __cleanup__(self, error: Exception | None) -> None:
        self._close()

    def _close(self) -> None:
        files, self._files = self._files, None
        procs, self._procs = self._procs, None
        if files is not None:
            # A host that is lost shows nothing either.
            with suppress(MeshError):
                files.close.options(return_exceptions=True).call().get()
        if procs is not None:
            with suppress(MeshError):
                procs.stop().get()

    def _opened(self) -> HostFiles:
        assert self._files is not None, "the handler asks only between `open` and `close`"
        return self._files
