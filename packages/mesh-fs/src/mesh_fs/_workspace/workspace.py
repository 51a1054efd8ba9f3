"""A directory of the client, written out on every host of a mesh."""

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

#: What each host makes itself, and what is only meant for this package.
_NEVER_TAKEN = ("__pycache__/", "/.mesh-workspace/")


@dataclass(frozen=True)
class SyncResult:
    """What a sync has changed.

    Attributes:
        hosts: On each host; the error stands for a host that is lost.
        modules: The modules that processes have reloaded, each once, by name.
    """

    hosts: ValueMesh[HostSync | MeshError]
    modules: tuple[str, ...] = ()

    @property
    def written(self) -> int:
        """Files and links that were made or replaced, on all hosts together."""
        return sum(host.written for host in self._done())

    @property
    def removed(self) -> int:
        """Files and links that were removed, on all hosts together."""
        return sum(host.removed for host in self._done())

    @property
    def overwritten(self) -> int:
        """Those among both that were made or changed on a host meanwhile."""
        return sum(host.overwritten for host in self._done())

    @property
    def written_bytes(self) -> int:
        """The content of the files that were written, on all hosts together."""
        return sum(host.written_bytes for host in self._done())

    def _done(self) -> list[HostSync]:
        return [host for host in self.hosts.values() if isinstance(host, HostSync)]


class Workspace:
    """One directory of the client, and its copies on hosts; made by `sync_workspace`.

    Attributes:
        path: The directory.
        directories: Where it is on the hosts.
        result: What the last sync has changed.
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
        # In a process of its own: it hashes and serves while the program computes.
        self._procs: ProcMesh | None = this_host().spawn_procs(name="mesh-fs-source")
        try:
            source = self._procs.spawn("source", Source, path, snapshot, cache)
            self._controller = self._procs.spawn(
                "controller", WorkspaceController, source, path, host_mesh, remote, cache
            )
            self.directories = self._controller.open.call_one().get()
            # Before the first sync, so that they know what of it is new.
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
        """Writes the directory on the hosts as it is now, and reloads what processes have of it.

        Hosts that are lost are left out.

        Raises:
            SnapshotError: The directory cannot be read as it is at one moment.
            WorkspaceError: A host cannot write it, or it was closed. Other hosts may have written
                it; what was written stays, and the next sync goes on.
            ReloadError: The files are written, and some process goes on with the old code of a
                module. It is tried again by the next sync.
        """
        if self._procs is None:
            raise WorkspaceError(f"the workspace of {self.path!r} is closed: make another one")
        self.result = SyncResult(self._controller.sync.call_one().get())
        self.result = replace(self.result, modules=self._reload())
        return self.result

    def close(self) -> None:
        """Ends what it has on the hosts; the files stay there. Twice is the same as once."""
        reloaders, self._reloaders = self._reloaders, []
        for reloader in reloaders:
            # One whose process is lost has ended already.
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
        """Has all processes reload what has changed.

        Processes that are lost have nothing to reload.
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
        f"the process of rank {rank} goes on with the old {module!r}: {cause}"
        for rank, module, cause in failures
    ]
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    text = f"{texts[0]}{more}: mend the module and sync again"
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
    """Writes a directory of this machine into a directory of every host of a mesh.

    Unlike with `remotemount` the files are ordinary ones, and programs may write next to them. What
    an earlier sync has written and is gone here is removed; files of others stay. The client wins:
    what was changed on a host is overwritten, and counted. Names of one file become files of their
    own, everything is writable for its user, and sockets, pipes, devices and `__pycache__` are left
    out. Where the directory of a host is the client's own, as on a shared disk, nothing is written.

    Args:
        host_mesh: Where.
        workspace: The directory.
        remote: The directory on the hosts; what `$WORKSPACE_DIR` says on the host if left out, or
            else the same path as here. `$SUBDIR` in it stands for the host's place in the mesh, as
            `hosts_0`.
        snapshot: What of the directory is taken.
        cache: Where the hosts keep chunks.
        auto_reload: Processes that reload, after each sync, the modules whose files have changed,
            and those that have imported names from them. Classes and functions stay the same
            objects with new code, so that actors that are running go on with it: their next message
            is served by it. Calls that are running end with the old code. A method whose captured
            variables are others than before, as where it is the first with `super()`, or that
            becomes `async`, is new only for actors that are spawned later; so is a class with other
            `__slots__`. What was pickled by value, as a class of `__main__`, is no module.

    Returns:
        What syncs again; a context manager, at whose end the files stay.

    Raises:
        SnapshotError: `workspace` is no directory.
        WorkspaceError: A host cannot write it.
        ReloadError: As for `Workspace.sync`.

    Example:
        >>> with sync_workspace(hosts, "project", "/srv/project", auto_reload=procs) as project:
        ...     edit("project/trainer.py")
        ...     project.sync().written
        1
    """
    path = os.path.abspath(workspace)
    if not os.path.isdir(path):
        raise SnapshotError(f"{path!r} is no directory: give one that is")
    there = None if remote is None else os.fspath(remote)
    if there is not None and not os.path.isabs(there):
        raise WorkspaceError(f"{there!r} is a relative path: give the whole path, as hosts know it")
    options = snapshot or SnapshotOptions()
    options = replace(options, ignore=(*options.ignore, *_NEVER_TAKEN))
    meshes = (auto_reload,) if isinstance(auto_reload, ProcMesh) else tuple(auto_reload or ())
    return Workspace(host_mesh, path, there, options, cache or CacheOptions(), meshes)
