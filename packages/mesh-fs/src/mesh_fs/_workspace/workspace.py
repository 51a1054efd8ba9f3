"""A directory of the client, written to every host of a mesh."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mesh_core import MeshError, ProcMesh, this_host
from mesh_fs._delivery.source import Source
from mesh_fs._errors import ReloadError, SnapshotError, WorkspaceError
from mesh_fs._options import CacheOptions, SnapshotOptions
from mesh_fs._reload.reloader import Reloaded, Reloader
from mesh_fs._workspace.controller import WorkspaceController
from mesh_fs._workspace.host_workspace import HostSync

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from mesh_core import HostMesh, ValueMesh

__all__ = ["SyncResult", "Workspace", "sync_workspace"]

#: Files that each host creates itself, and internal files of this package.
_NEVER_TAKEN = ("__pycache__/", "/.mesh-workspace/")


@dataclass(frozen=True)
class SyncResult:
    """The changes of a sync.

    Attributes:
        hosts: The changes on each host; a lost host has an error instead.
        modules: The names of the modules that processes have reloaded, without duplicates.
    """

    hosts: ValueMesh[HostSync | MeshError]
    modules: tuple[str, ...] = ()

    @property
    def written(self) -> int:
        """The number of files and links that were created or replaced, on all hosts together."""
        return sum(host.written for host in self._done())

    @property
    def removed(self) -> int:
        """The number of files and links that were removed, on all hosts together."""
        return sum(host.removed for host in self._done())

    @property
    def overwritten(self) -> int:
        """How many of these had been created or changed on a host since the last sync."""
        return sum(host.overwritten for host in self._done())

    @property
    def written_bytes(self) -> int:
        """The size of the files that were written, on all hosts together."""
        return sum(host.written_bytes for host in self._done())

    def _done(self) -> list[HostSync]:
        return [host for host in self.hosts.values() if isinstance(host, HostSync)]


class Workspace:
    """A directory of the client and its copies on hosts; created by `sync_workspace`.

    Attributes:
        path: The directory.
        directories: The directories on the hosts.
        result: The changes of the last sync.
    """

    path: str
    directories: tuple[str, ...]
    result: SyncResult

    def __init__(
        self,
        host_mesh: HostMesh,
        path: str,
        remote: str | None,
        snapshot: SnapshotOptions,
        cache: CacheOptions,
        reloaded: tuple[ProcMesh, ...],
    ) -> None:
        self.path = path
        self._reloaders: list[Reloader] = []
        # A separate process hashes and serves files while the program computes.
        self._procs: ProcMesh | None = this_host().spawn_procs(name="mesh-fs-source")
        try:
            source = self._procs.spawn("source", Source, path, snapshot, cache)
            self._controller = self._procs.spawn(
                "controller", WorkspaceController, source, path, host_mesh, remote, cache
            )
            self.directories = self._controller.open.call_one().get()
            # Start the reloaders before the first sync, so that they can detect its changes.
            for procs in reloaded:
                reloader = procs.spawn("mesh-fs-reloader", Reloader, self.directories)
                self._reloaders.append(reloader)
            for reloader in self._reloaders:
                reloader.initialized.get()
            self.sync()
        except BaseException:
            self.close()
            raise

    def sync(self) -> SyncResult:
        """Write the current state of the directory on the hosts, and reload changed modules.

        Lost hosts are skipped.

        Raises:
            SnapshotError: A consistent snapshot of the directory could not be taken.
            WorkspaceError: A host cannot write the directory, or the workspace is closed. Other
                hosts may have written it. Written files remain, and the next sync continues.
            ReloadError: The files are written, but some process keeps the old code of a module. The
                next sync retries it.
        """
        if self._procs is None:
            raise WorkspaceError(f"the workspace of {self.path!r} is closed: make another one")
        self.result = SyncResult(self._controller.sync.call_one().get())
        self.result = replace(self.result, modules=self._reload())
        return self.result

    def close(self) -> None:
        """Stop the processes on the hosts; the files remain. Calling it again has no effect."""
        reloaders, self._reloaders = self._reloaders, []
        for reloader in reloaders:
            # The actor of a lost process has already ended.
            with suppress(MeshError):
                reloader.stop().get()
        procs, self._procs = self._procs, None
        if procs is not None:
            procs.stop().get()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _reload(self) -> tuple[str, ...]:
        """Make all processes reload changed modules.

        Lost processes are skipped.
        """
        calls = [one.reload.options(return_exceptions=True).call() for one in self._reloaders]
        modules: set[str] = set()
        failures: list[tuple[int, str, str]] = []
        for answers in [call.get() for call in calls]:
            for rank, answer in enumerate(answers.values()):
                if isinstance(answer, Reloaded):
                    modules.update(answer.modules)
                    failures += [(rank, *failure) for failure in answer.failures]
        if failures:
            raise _reload_error(failures)
        return tuple(sorted(modules))


def _reload_error(failures: list[tuple[int, str, str]]) -> ReloadError:
    texts = [
        f"the process of rank {rank} keeps the old {module!r}: {cause}"
        for rank, module, cause in failures
    ]
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    text = f"{texts[0]}{more}: fix the module and sync again"
    return ReloadError(text, *failures[0], tuple(texts[1:]))


def sync_workspace(
    host_mesh: HostMesh,
    workspace: str | os.PathLike[str],
    remote: str | os.PathLike[str] | None = None,
    *,
    snapshot: SnapshotOptions | None = None,
    cache: CacheOptions | None = None,
    auto_reload: ProcMesh | Sequence[ProcMesh] | None = None,
) -> Workspace:
    """Write a directory of this machine into a directory of every host of a mesh.

    Unlike with `remotemount`, the files are ordinary files, and programs may write next to them.
    Files that an earlier sync has written and that no longer exist here are removed; files of
    others remain. The client takes precedence: changes on a host are overwritten, and counted. Hard
    links become separate files, all files are writable by their owner, and sockets, pipes, devices
    and `__pycache__` are omitted. If the directory of a host is the client's own, for example on a
    shared disk, nothing is written.

    Args:
        host_mesh: The hosts.
        workspace: The directory.
        remote: The directory on the hosts. Default: the value of `$WORKSPACE_DIR` on the host, or
            else the same path as on this machine. `$SUBDIR` is replaced by the host's position in
            the mesh, such as `hosts_0`.
        snapshot: Snapshot options, such as patterns of files to exclude.
        cache: The location and size limit of the chunks on the hosts.
        auto_reload: Processes that, after each sync, reload the modules whose files have changed
            and the modules that have imported names from them. Classes and functions remain the
            same objects and get new code, so running actors handle their next message with the new
            code. Calls that are already running finish with the old code. Some changes affect only
            actors that are spawned later: a method with other captured variables (for example the
            first use of `super()`), a method that becomes `async`, and a class with other
            `__slots__`. Objects that were pickled by value, such as classes of `__main__`, are not
            reloaded.

    Returns:
        A handle to sync again; also a context manager, after which the files remain.

    Raises:
        SnapshotError: `workspace` is not a directory.
        WorkspaceError: A host cannot write the directory.
        ReloadError: See `Workspace.sync`.

    Example:
        >>> with sync_workspace(hosts, "project", "/srv/project", auto_reload=procs) as project:
        ...     edit("project/trainer.py")
        ...     project.sync().written
        1
    """
    path = os.path.abspath(workspace)
    if not os.path.isdir(path):
        raise SnapshotError(f"{path!r} is not a directory: give a directory")
    there = None if remote is None else os.fspath(remote)
    if there is not None and not os.path.isabs(there):
        raise WorkspaceError(f"{there!r} is a relative path: give the absolute path on the hosts")
    options = snapshot or SnapshotOptions()
    options = replace(options, ignore=(*options.ignore, *_NEVER_TAKEN))
    meshes = (auto_reload,) if isinstance(auto_reload, ProcMesh) else tuple(auto_reload or ())
    return Workspace(host_mesh, path, there, options, cache or CacheOptions(), meshes)
