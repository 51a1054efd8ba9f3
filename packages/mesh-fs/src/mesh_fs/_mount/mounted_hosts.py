"""The hosts of one mesh that show a directory of the client."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from mesh_core import MeshError, SupervisionError, ValueMesh, this_proc
from mesh_fs._delivery.distribution_tree import DistributionTree
from mesh_fs._mount.host_mount import HostFiles, HostStatus
from mesh_fs._mount.host_recovery import RecoveryMonitor, restart_process
from mesh_fs._subdirectory import with_subdirectory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from mesh_core import HostMesh
    from mesh_fs._delivery.source import Source
    from mesh_fs._mount.controller import MountController
    from mesh_fs._options import CacheOptions, MountOptions

_logger = logging.getLogger("mesh_fs")

__all__ = ["MountedHosts", "RecoveryResult", "mountpoints_in"]


@dataclass(frozen=True)
class RecoveryResult:
    """The outcome of recovering hosts.

    Attributes:
        count: The total number of hosts that show the tree now.
        failures: The errors of reachable hosts that cannot show it.
    """

    count: int
    failures: tuple[MeshError, ...]


class MountedHosts:
    """The processes on some hosts, one per host, and their mounts.

    Args:
        hosts: The hosts.
        mountpoints: The mountpoint of each host.
        before: The relays of hosts that were added earlier, from which these hosts may fetch.
        cache: The location and size limit of the chunks on the hosts.
        options: Mount options.
    """

    def __init__(
        self,
        hosts: HostMesh,
        mountpoints: Sequence[str],
        before: tuple[HostFiles, ...],
        cache: CacheOptions,
        options: MountOptions,
    ) -> None:
        self.hosts = hosts.flatten("host")
        self._procs = hosts.spawn_procs(name="mesh-fs")
        files = self._procs.spawn("mesh-fs", HostFiles, tuple(mountpoints), cache, options)
        self.files = files.flatten("host")
        self._distribution = DistributionTree(self.files, before)
        self._monitor: RecoveryMonitor | None = None

    def set_providers(self, source: Source) -> None:
        """Set the providers of all hosts.

        Raises:
            MeshError: A host is lost, or cannot store files.
        """
        self.files.set_providers.call(self._distribution, source).get()

    def show(self, recipe: bytes) -> ValueMesh[HostStatus | MeshError]:
        """Show a tree on all hosts; a host that fails has an error in the result."""
        statuses = self.files.show.options(return_exceptions=True).call(recipe).get()
        return cast("ValueMesh[HostStatus | MeshError]", statuses)

    def monitor_recovery(self, controller: MountController) -> None:
        """Have the controller notified when a lost host is reachable again."""
        self._monitor = this_proc().spawn(
            "mesh-fs-recovery", RecoveryMonitor, self.hosts, controller
        )
        self._monitor.begin.call_one().get()

    def recover(self, source: Source, recipe: bytes) -> RecoveryResult:
        """Show a tree on reachable hosts that show none."""
        statuses: Any = self.files.status.options(return_exceptions=True).call().get()
        lost = [
            rank for rank, status in enumerate(statuses.values()) if isinstance(status, MeshError)
        ]
        count, failures = len(self.hosts) - len(lost), []
        for rank in lost:
            try:
                if restart_process(self.hosts, self._procs, rank):
                    one = self.files.slice(host=rank)
                    one.set_providers.call_one(self._distribution, source).get()
                    one.show.call_one(recipe).get()
                    count += 1
            except MeshError as error:
                failures.append(error)
        return RecoveryResult(count, tuple(failures))

    def close(self) -> list[Any]:
        """Unmount everywhere; return the pending stops of all processes and actors."""
        stops: list[Any] = []
        if self._monitor is not None:
            stops.append(self._monitor.stop())
        with suppress(MeshError):
            for closed in self.files.close.options(return_exceptions=True).call().get().values():
                # A lost host has no mount.
                if isinstance(closed, MeshError) and not isinstance(closed, SupervisionError):
                    _logger.warning("a host has not unmounted the files: %s", closed)
        return [*stops, self._procs.stop()]


def mountpoints_in(hosts: HostMesh, mountpoint: str) -> list[str]:
    """Return the mountpoint of each host; `$SUBDIR` is replaced by its position in the mesh."""
    numbers = ValueMesh(hosts.extent, range(len(hosts)))
    return [with_subdirectory(mountpoint, point) for point, _ in numbers.items()]
