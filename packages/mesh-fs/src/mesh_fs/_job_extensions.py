"""Files on the hosts of a job: extensions for `Job.add_extensions` of mesh-jobs."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mesh_core import MeshError
from mesh_fs._errors import MountError, WorkspaceError
from mesh_fs._gather.mount import gather_mount
from mesh_fs._mount.host_mount import HostStatus
from mesh_fs._mount.remote_mount import remotemount
from mesh_fs._options import MountOptions, SnapshotOptions
from mesh_fs._workspace.workspace import sync_workspace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh_core import HostMesh
    from mesh_fs._gather.mount import GatherMount
    from mesh_fs._mount.remote_mount import MountHandler
    from mesh_fs._options import CacheOptions, GatherOptions
    from mesh_fs._workspace.workspace import Workspace

__all__ = ["GatheredMount", "RemoteMount", "WorkspaceSync", "held_mount"]


class RemoteMount:
    """A directory of the client on the hosts of a job, for `Job.add_extensions`.

    It is mounted when `job.state()` attaches to the hosts, refreshed when `state` is called again,
    and unmounted by `job.detach()`, `job.kill()` and the end of the program.

    Args:
        source: The directory.
        mntpoint: The mountpoint on the hosts, as for `remotemount`.
        meshes: The names of the meshes. Default: all.
        python_exe: The path of a Python executable in the directory, such as `.venv/bin/python`.
            Processes that are spawned on these meshes of `job.state()` use it. Its environment must
            contain mesh-core.
        snapshot: Snapshot options, such as patterns of files to exclude.
        mount: Mount options.
        cache: The location and size limit of the chunks on the hosts.
        watch: Refresh the mount whenever the directory changes.

    Raises:
        SnapshotError: `source` is not a directory.
        MountError: A path is not valid, or the Python executable does not exist.

    Example:
        >>> project = RemoteMount("project", "/mnt/project", python_exe=".venv/bin/python")
        >>> trainers = job.add_extensions(project).state().trainers.spawn_procs({"gpus": 8})
        >>> project.handler.refresh()
        True
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        mntpoint: str | os.PathLike[str] | None = None,
        *,
        meshes: Sequence[str] | None = None,
        python_exe: str | None = None,
        snapshot: SnapshotOptions | None = None,
        mount: MountOptions | None = None,
        cache: CacheOptions | None = None,
        watch: bool = False,
    ) -> None:
        self._source = os.path.abspath(source)
        self._mntpoint = self._source if mntpoint is None else os.fspath(mntpoint)
        self._names = None if meshes is None else tuple(meshes)
        self._python_exe = python_exe
        self._snapshot = snapshot
        self._mount = mount
        self._cache = cache
        self._is_watched = watch
        self._open: _OpenMount | None = None
        if python_exe is not None:
            self._check(os.path.join(self._source, python_exe))

    @property
    def handler(self) -> MountHandler:
        """The handle of the mount, for refreshing and inspecting it.

        Raises:
            MountError: The mount is not open; `job.state()` opens it.
        """
        if self._open is None or not self._open.is_open:
            raise MountError(f"{self._source!r} is not mounted: call job.state() first")
        return self._open.handler

    def open(self, meshes: Mapping[str, HostMesh]) -> _OpenMount:
        """Mount the directory; called by `Job.state`.

        Args:
            meshes: All meshes of the job.

        Raises:
            FilesError: A host cannot show the directory.
        """
        chosen = _chosen(meshes, self._names)
        first, *others = chosen.values()
        handler = remotemount(
            first,
            self._source,
            self._mntpoint,
            snapshot=self._snapshot,
            mount=self._mount,
            cache=self._cache,
            watch=self._is_watched,
        ).open()
        try:
            for one in others:
                handler.add_hosts(one)
        except BaseException:
            handler.close()
            raise
        python = self._python_exe and os.path.join(self._mntpoint, self._python_exe)
        self._open = _OpenMount(handler, frozenset(chosen), python)
        return self._open

    def _check(self, python: str) -> None:
        if not os.access(python, os.X_OK):
            raise MountError(
                f"there is no Python {python!r}: give its path relative to the directory"
            )
        if "$SUBDIR" in self._mntpoint:
            raise MountError(
                f"mountpoint {self._mntpoint!r} differs between hosts, so they have no common path "
                "of a Python: leave python_exe out"
            )


class _OpenMount:
    def __init__(self, handler: MountHandler, names: frozenset[str], python: str | None) -> None:
        self.handler = handler
        self.is_open: bool = True
        self._names = names
        self._python = python

    def refresh(self) -> None:
        self.handler.refresh()

    def used(self, name: str, hosts: HostMesh) -> HostMesh:
        if self._python is None or name not in self._names:
            return hosts
        return hosts.with_python_executable(self._python)

    def status(self) -> dict[str, Any]:
        return {
            "source": self.handler.sourcepath,
            "mountpoint": self.handler.mntpoint,
            "hosts": [
                asdict(one) if isinstance(one, HostStatus) else {"error": _line_of(one)}
                for one in self.handler.status().values()
            ],
        }

    def close(self) -> None:
        self.is_open = False
        self.handler.close()


class GatheredMount:
    """Directories of the hosts of a job, mounted on the client: see `gather_mount`.

    If there are several meshes, each has a folder with its name.

    Args:
        remote_mount_point: The directory on each host.
        local_mount_point: The mountpoint on the client.
        meshes: The names of the meshes. Default: all.
        options: Cache sizes, cache lifetimes, and timeouts.

    Example:
        >>> job.add_extensions(GatheredMount("/var/log/train", "logs")).state()
    """

    def __init__(
        self,
        remote_mount_point: str,
        local_mount_point: str | os.PathLike[str],
        *,
        meshes: Sequence[str] | None = None,
        options: GatherOptions | None = None,
    ) -> None:
        self._remote = remote_mount_point
        self._local = os.path.abspath(local_mount_point)
        self._names = None if meshes is None else tuple(meshes)
        self._options = options

    def open(self, meshes: Mapping[str, HostMesh]) -> _OpenGathered:
        """Mount the directories; called by `Job.state`.

        Args:
            meshes: All meshes of the job.

        Raises:
            FilesError: The directories cannot be mounted.
        """
        chosen = _chosen(meshes, self._names)
        is_one = len(chosen) == 1
        opened = _OpenGathered({})
        try:
            for name, hosts in chosen.items():
                place = self._local if is_one else os.path.join(self._local, name)
                opened.mounts[name] = gather_mount(
                    hosts, self._remote, place, options=self._options
                )
        except BaseException:
            opened.close()
            raise
        return opened


class _OpenGathered:
    def __init__(self, mounts: dict[str, GatherMount]) -> None:
        self.mounts = mounts

    def refresh(self) -> None:
        """Do nothing, because the mount is always up to date."""

    def used(self, name: str, hosts: HostMesh) -> HostMesh:
        return hosts

    def status(self) -> dict[str, Any]:
        return {
            "meshes": {
                name: {
                    "remote": mount.remote_mount_point,
                    "local": mount.local_mount_point,
                    "cached_bytes": mount.cached_bytes(),
                }
                for name, mount in self.mounts.items()
            }
        }

    def close(self) -> None:
        _close_all(self.mounts)


class WorkspaceSync:
    """A directory of the client, written to the hosts of a job: see `sync_workspace`.

    It is written when `job.state()` attaches to the hosts, and again when `state` is called again.
    The files remain on the hosts.

    Args:
        workspace: The directory.
        remote: The directory on the hosts, as for `sync_workspace`.
        meshes: The names of the meshes. Default: all.
        snapshot: Snapshot options, such as patterns of files to exclude.
        cache: The location and size limit of the chunks on the hosts.

    Example:
        >>> project = WorkspaceSync("project", "/srv/project")
        >>> job.add_extensions(project).state()
        >>> project.workspaces["trainers"].sync().written
        1
    """

    def __init__(
        self,
        workspace: str | os.PathLike[str],
        remote: str | os.PathLike[str] | None = None,
        *,
        meshes: Sequence[str] | None = None,
        snapshot: SnapshotOptions | None = None,
        cache: CacheOptions | None = None,
    ) -> None:
        self._path = os.path.abspath(workspace)
        self._remote = remote
        self._names = None if meshes is None else tuple(meshes)
        self._snapshot = snapshot
        self._cache = cache
        self._open: _OpenWorkspaces | None = None

    @property
    def workspaces(self) -> Mapping[str, Workspace]:
        """The workspaces by mesh, for syncing them.

        Raises:
            WorkspaceError: The workspaces are not open; `job.state()` opens them.
        """
        if self._open is None or not self._open.by_mesh:
            raise WorkspaceError(f"{self._path!r} has not been written yet: call job.state() first")
        return dict(self._open.by_mesh)

    def open(self, meshes: Mapping[str, HostMesh]) -> _OpenWorkspaces:
        """Write the directory to the hosts; called by `Job.state`.

        Args:
            meshes: All meshes of the job.

        Raises:
            FilesError: A host cannot write it.
        """
        opened = _OpenWorkspaces({})
        try:
            for name, hosts in _chosen(meshes, self._names).items():
                opened.by_mesh[name] = sync_workspace(
                    hosts, self._path, self._remote, snapshot=self._snapshot, cache=self._cache
                )
        except BaseException:
            opened.close()
            raise
        self._open = opened
        return opened


class _OpenWorkspaces:
    def __init__(self, by_mesh: dict[str, Workspace]) -> None:
        self.by_mesh = by_mesh

    def refresh(self) -> None:
        for workspace in self.by_mesh.values():
            workspace.sync()

    def used(self, name: str, hosts: HostMesh) -> HostMesh:
        return hosts

    def status(self) -> dict[str, Any]:
        return {
            "meshes": {
                name: {"path": one.path, "directories": list(one.directories)}
                for name, one in self.by_mesh.items()
            }
        }

    def close(self) -> None:
        _close_all(self.by_mesh)


def held_mount(
    *,
    source: str,
    mntpoint: str,
    meshes: list[str] | None,
    backend: str,
    watch: bool,
    ignore: list[str],
    allow_other: bool,
) -> RemoteMount:
    """Create the mount that a command requests."""
    return RemoteMount(
        source,
        mntpoint,
        meshes=meshes,
        snapshot=SnapshotOptions(ignore=tuple(ignore)),
        mount=MountOptions(backend=backend, allow_other=allow_other),
        watch=watch,
    )


def _chosen(meshes: Mapping[str, HostMesh], names: Sequence[str] | None) -> dict[str, HostMesh]:
    unknown = [name for name in names or () if name not in meshes]
    if unknown:
        known = ", ".join(meshes)
        raise MountError(f"the job has no mesh {unknown[0]!r}: it has {known}")
    return {name: meshes[name] for name in (meshes if names is None else names)}


def _close_all(opened: dict[str, Any]) -> None:
    while opened:
        with suppress(MeshError):
            opened.popitem()[1].close()


def _line_of(error: MeshError) -> str:
    return str(error).partition("\n")[0]
