"""The controller of all mounts of one directory: hosts, and the current snapshot."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core import Actor, MeshError, SupervisionError, endpoint, this_host
from mesh_fs._delivery.source import Source
from mesh_fs._errors import SnapshotError
from mesh_fs._mount.mounted_hosts import MountedHosts, mountpoints_in
from mesh_fs._watch.watcher import Watcher

if TYPE_CHECKING:
    from mesh_core import HostMesh, MeshFailure, ProcMesh
    from mesh_fs._delivery.source import SnapshotManifest
    from mesh_fs._mount.host_mount import HostFiles
    from mesh_fs._mount.mounted_hosts import RecoveryResult
    from mesh_fs._options import CacheOptions, MountOptions, SnapshotOptions

__all__ = ["MountController"]


class MountController(Actor):
    """Makes hosts show the directory of a source.

    It owns and supervises the process of the source and those on the hosts, so the program survives
    their failures. It lives in the program's process and ends with it.

    Args:
        root: The directory.
        snapshot: Snapshot options, such as patterns of files to exclude.
        cache: The location and size limit of the chunks on the hosts.
        options: Mount options.
    """

    def __init__(
        self, root: str, snapshot: SnapshotOptions, cache: CacheOptions, options: MountOptions
    ) -> None:
        self._root = root
        self._snapshot = snapshot
        self._cache = cache
        self._options = options
        self._source_procs: ProcMesh | None = None
        self._source: Source | None = None
        self._meshes: list[MountedHosts] = []
        self._watcher: Watcher | None = None
        self._manifest: SnapshotManifest | None = None
        self._has_lost = False
        # Whether a reachable host has failed to show the current tree.
        self._has_refused = False

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Continue with the other hosts; readers of a lost host switch to their next provider."""
        self._has_lost = True
        return True

    @endpoint
    def open(
        self, controller: MountController, hosts: HostMesh, mountpoint: str
    ) -> tuple[str, ...]:
        """Show the directory on all hosts, or on none; return the paths that could not be read.

        Args:
            controller: The handle of this actor.
            hosts: The hosts.
            mountpoint: The mountpoint on each host. `$SUBDIR` is replaced by the host's position in
                the mesh.
        """
        try:
            # A separate process hashes and serves files while the program computes.
            self._source_procs = this_host().spawn_procs(name="mesh-fs-source")
            self._source = self._source_procs.spawn(
                "source", Source, self._root, self._snapshot, self._cache
            )
            walk = self._source.take.call_one()
            # The hosts are prepared while the source walks the directory.
            mounted = self._start(hosts, mountpoints_in(hosts, mountpoint))
            self._manifest = walk.get()
            mounted.files.show.call(self._manifest.recipe).get()
            mounted.monitor_recovery(controller)
        except BaseException:
            self._close()
            raise
        return self._manifest.skipped

    @endpoint
    def add(self, controller: MountController, hosts: HostMesh, mountpoint: str) -> int:
        """Show the directory on those hosts of a mesh that do not show it yet, or on none.

        Returns:
            The number of hosts that were added.
        """
        assert self._manifest is not None, "the handler asks only between `open` and `close`"
        flat, mountpoints = hosts.flatten("host"), mountpoints_in(hosts, mountpoint)
        known = {
            mounted.hosts.slice(host=rank)
            for mounted in self._meshes
            for rank in range(len(mounted.hosts))
        }
        new = [rank for rank in range(len(flat)) if flat.slice(host=rank) not in known]
        if not new:
            return 0
        mounted = self._start(flat.slice(host=new), [mountpoints[rank] for rank in new])
        try:
            mounted.files.show.call(self._manifest.recipe).get()
            mounted.monitor_recovery(controller)
        except BaseException:
            self._meshes.remove(mounted)
            _unmount([mounted])
            raise
        return len(new)

    @endpoint
    def refresh(self) -> bool:
        """Show the current state of the directory on all remaining hosts.

        A host that cannot show the new state keeps the previous one. Processes that were killed on
        reachable hosts are restarted.

        Returns:
            Whether the directory has changed.
        """
        manifest = self._take()
        is_new = self._manifest is None or manifest.id != self._manifest.id
        self._manifest = manifest
        errors: list[MeshError] = []
        if is_new or self._has_refused:
            results = [
                one for mounted in self._meshes for one in mounted.show(manifest.recipe).values()
            ]
            errors = [result for result in results if isinstance(result, MeshError)]
        refusals = [error for error in errors if not isinstance(error, SupervisionError)]
        self._has_refused = bool(refusals)
        if errors or self._has_lost:
            count = sum(result.count for result in self._recover())
            if errors and not count:
                raise errors[0]
        if refusals:
            raise refusals[0]
        return is_new

    @endpoint
    def recover(self) -> bool:
        """Restore the mount on hosts that are reachable again; return whether all succeeded."""
        return not any(result.failures for result in self._recover())

    @endpoint
    def host_files(self) -> list[HostFiles]:
        """Return the actors that show the directory, by mesh in the order of addition."""
        return [mounted.files for mounted in self._meshes]

    @endpoint
    def watch(self, controller: MountController) -> None:
        """Refresh the mount whenever the directory changes.

        Args:
            controller: The handle of this actor.
        """
        if self._watcher is not None:
            return
        assert self._source is not None, "the handler asks only between `open` and `close`"
        assert self._source_procs is not None, "it is the process of the source"
        watcher = self._source_procs.spawn("watcher", Watcher, self._root, self._source, controller)
        try:
            watcher.begin.call_one().get()
        except BaseException:
            watcher.stop().get()
            raise
        self._watcher = watcher

    @endpoint
    def sent_bytes(self) -> int:
        """Return the number of bytes that the client has sent."""
        assert self._source is not None, "the handler asks only between `open` and `close`"
        return self._source.served_bytes.call_one().get()

    @endpoint
    def close(self) -> None:
        """Unmount everywhere."""
        self._close()

    def __cleanup__(self, error: Exception | None) -> None:
        self._close()

    def _take(self) -> SnapshotManifest:
        assert self._source is not None, "the handler asks only between `open` and `close`"
        try:
            return self._source.take.call_one().get()
        except SupervisionError as error:
            raise SnapshotError(
                f"the process that reads {self._root!r} has exited: close() and open() it again"
            ) from error

    def _start(self, hosts: HostMesh, mountpoints: list[str]) -> MountedHosts:
        assert self._source is not None, "it is started before those who fetch from it"
        before = tuple(mounted.files for mounted in self._meshes)
        mounted = MountedHosts(hosts, mountpoints, before, self._cache, self._options)
        self._meshes.append(mounted)
        try:
            mounted.set_providers(self._source)
        except BaseException:
            self._meshes.remove(mounted)
            _unmount([mounted])
            raise
        return mounted

    def _recover(self) -> list[RecoveryResult]:
        """Restore the mount on hosts that are reachable again."""
        assert self._source is not None, "the handler asks only between `open` and `close`"
        assert self._manifest is not None, "what is shown was taken before"
        results = [mounted.recover(self._source, self._manifest.recipe) for mounted in self._meshes]
        self._has_lost = any(result.failures for result in results)
        return results

    def _close(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            with suppress(MeshError):
                watcher.end.call_one().get()
        mounted, self._meshes = self._meshes, []
        source_procs, self._source_procs, self._source = self._source_procs, None, None
        _unmount(mounted)
        if source_procs is not None:
            with suppress(MeshError):
                source_procs.stop().get()


def _unmount(mounted: list[MountedHosts]) -> None:
    """Unmount on some hosts."""
    stops = [stop for one in reversed(mounted) for stop in one.close()]
    for stop in stops:
        with suppress(MeshError):
            stop.get()
