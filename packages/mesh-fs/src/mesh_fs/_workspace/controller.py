"""The controller of the workspaces of hosts that copy one directory of the client."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, cast

from mesh_core import Actor, MeshError, SupervisionError, ValueMesh, endpoint
from mesh_fs._delivery.distribution_tree import DistributionTree
from mesh_fs._errors import FilesError, SnapshotError
from mesh_fs._mount.host_recovery import restart_process
from mesh_fs._workspace.directory_identity import DirectoryIdentity
from mesh_fs._workspace.host_workspace import HostSync, HostWorkspace

if TYPE_CHECKING:
    from mesh_core import HostMesh, MeshFailure, ProcMesh
    from mesh_fs._delivery.source import Source
    from mesh_fs._options import CacheOptions

__all__ = ["WorkspaceController"]


class WorkspaceController(Actor):
    """Makes hosts write the directory of a source.

    It owns and supervises the processes on the hosts, so the program survives their failures.

    Args:
        source: The actor that serves the directory.
        root: The directory.
        hosts: The hosts.
        remote: The directory on each host; None if each host determines it.
        cache: The location and size limit of the chunks on the hosts.
    """

    def __init__(
        self,
        source: Source,
        root: str,
        hosts: HostMesh,
        remote: str | None,
        cache: CacheOptions,
    ) -> None:
        self._source = source
        self._root = root
        self._hosts = hosts
        self._remote = remote
        self._cache = cache
        self._procs: ProcMesh | None = None
        self._workspaces: HostWorkspace | None = None

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Continue with the other hosts; readers of a lost host switch to their next provider."""
        return True

    @endpoint
    def open(self) -> tuple[str, ...]:
        """Start processes on the hosts; return the directories into which they write."""
        self._procs = self._hosts.spawn_procs(name="mesh-fs-workspace")
        workspaces = self._procs.spawn(
            "mesh-fs-workspace", HostWorkspace, self._remote, self._root, self._cache
        )
        workspaces.set_providers.call(
            DistributionTree(workspaces.flatten("host")), self._source
        ).get()
        self._workspaces = workspaces
        return tuple(sorted(set(workspaces.directory.call().get().values())))

    @endpoint
    def sync(self) -> ValueMesh[HostSync | MeshError]:
        """Write the current state of the directory on all remaining hosts.

        Raises:
            FilesError: A reachable host could not write it; other hosts may have written it.
            MeshError: All hosts are lost.
        """
        assert self._workspaces is not None, "it is called only after `open`"
        manifest = self._source.take.call_one().get()
        try:
            identity = DirectoryIdentity.of(self._root)
        except OSError as error:
            raise SnapshotError(f"{self._root!r} cannot be read: {error}") from error
        syncing = self._workspaces.sync.options(return_exceptions=True)
        done = cast(
            "ValueMesh[HostSync | MeshError]", syncing.call(manifest.recipe, identity).get()
        )
        results = [
            self._retry(rank, manifest.recipe, identity)
            if isinstance(result, SupervisionError)
            else result
            for rank, result in enumerate(done.values())
        ]
        done = ValueMesh(done.extent, results)
        failed = [result for result in results if isinstance(result, MeshError)]
        own_errors = [result for result in failed if isinstance(result, FilesError)]
        if own_errors or len(failed) == len(done.values()):
            raise [*own_errors, *failed][0]
        return done

    def _retry(self, rank: int, recipe: bytes, identity: DirectoryIdentity) -> HostSync | MeshError:
        """Retry on a host whose process was lost, if the process can be restarted."""
        assert self._procs is not None, "it is called only after `open`"
        assert self._workspaces is not None, "it is called only after `open`"
        every = self._workspaces.flatten("host")
        one = every.slice(host=rank)
        try:
            if restart_process(self._hosts.flatten("host"), self._procs, rank):
                one.set_providers.call_one(DistributionTree(every), self._source).get()
            return one.sync.call_one(recipe, identity).get()
        except MeshError as error:
            return error

    def __cleanup__(self, error: Exception | None) -> None:
        procs, self._procs = self._procs, None
        if procs is not None:
            with suppress(MeshError):
                procs.stop().get()
