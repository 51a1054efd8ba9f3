"""The hosts of one mesh that show the directory of a client."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from mesh_core import MeshError, ValueMesh, this_proc
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

__all__ = ["MountedHosts", "RecoveryResult", "places_in"]


@dataclass(frozen=True)
class RecoveryResult:
    """What has become of hosts that showed nothing.

    Attributes:
        count: How many hosts show the tree now, of all.
        failures: Why some cannot that are there.
    """

    count: int
    failures: tuple[MeshError, ...]


class MountedHosts:
    """Processes on some hosts, one on each, and what they show.

    Args:
        hosts: The hosts.
        mountpoints: Where each shows it.
        before: The relays of hosts that came before, from which these may fetch.
        cache: Where they keep chunks.
        options: How the tree is shown.
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
        """Says to all from whom they fetch.

        Raises:
            MeshError: A host is lost, or cannot keep files.
        """
        self.files.set_providers.call(self._distribution, source).get()

    def show(self, recipe: bytes) -> ValueMesh[HostStatus | MeshError]:
        """Has all show a tree; the error stands for a host that does not."""
        shown = self.files.show.options(return_exceptions=True).call(recipe).get()
        return cast("ValueMesh[HostStatus | MeshError]", shown)

    def monitor_recovery(self, controller: MountController) -> None:
        """Tells the controller when a lost host is there again."""
        self._monitor = this_proc().spawn(
            "mesh-fs-recovery", RecoveryMonitor, self.hosts, controller
        )
        self._monitor.begin.call_one().get()

    def recover(self, source: Source, recipe: bytes) -> RecoveryResult:
        """Has those show a tree that show none and whose hosts are there."""
        asked: Any = self.files.status.options(return_exceptions=True).call().get()
        lost = [rank for rank, told in enumerate(asked.values()) if isinstance(told, MeshError)]
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
        """Shows nothing any more; gives the ends of what it has started."""
        ends: list[Any] = []
        if self._monitor is not None:
            ends.append(self._monitor.stop())
        # A host that is lost shows nothing either.
        with suppress(MeshError):
            self.files.close.options(return_exceptions=True).call().get()
        return [*ends, self._procs.stop()]


def places_in(hosts: HostMesh, mountpoint: str) -> list[str]:
    """Gives where each host of a mesh shows it; `$SUBDIR` stands for its place in the mesh."""
    numbers = ValueMesh(hosts.extent, range(len(hosts)))
    return [with_subdirectory(mountpoint, point) for point, _ in numbers.items()]
