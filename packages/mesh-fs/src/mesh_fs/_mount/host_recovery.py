"""Restarts processes of this package on hosts that were lost and are reachable again."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_core import Actor, HostDied, MeshError, endpoint
from mesh_fs._delivery.fetcher import in_background

if TYPE_CHECKING:
    from mesh_core import HostMesh, ProcMesh
    from mesh_fs._mount.controller import MountController

__all__ = ["RecoveryMonitor", "restart_process"]

#: The interval at which to check whether a lost host has been replaced.
_CHECK_INTERVAL_S = 0.25
_REPLY_TIMEOUT_S = 10.0
#: The pause before a failed recovery is retried. It doubles each time, up to the maximum.
_PAUSE_MIN_S = 0.5
_PAUSE_MAX_S = 30.0

_logger = logging.getLogger("mesh_fs")


def restart_process(hosts: HostMesh, procs: ProcMesh, rank: int) -> bool:
    """Ensure that a process with its actors runs if its host is reachable; return whether it is.

    A lost host is not changed: replacing it is the responsibility of the program.

    Args:
        hosts: The hosts in the order of the processes' ranks, in the single dimension `host`.
        procs: The processes, one per host. The caller owns them.
        rank: The rank of the process.

    Raises:
        MeshError: The host is reachable, but the process cannot be started.
    """
    try:
        hosts.slice(host=rank).initialized.get(timeout=_REPLY_TIMEOUT_S)
    except (HostDied, TimeoutError):
        return False
    try:
        procs.replace(rank)
    except MeshError:
        raise
    except RuntimeError:
        return True  # The process is alive.
    return True


class RecoveryMonitor(Actor):
    """Notifies the controller when lost hosts have been replaced by other machines.

    Args:
        hosts: The hosts to monitor.
        controller: Makes the new hosts show the current tree.
    """

    def __init__(self, hosts: HostMesh, controller: MountController) -> None:
        self._hosts = hosts
        self._controller = controller
        self._tasks: set[asyncio.Task[None]] = set()

    @endpoint
    async def begin(self) -> None:
        """Start monitoring."""
        in_background(self._run(self._hosts.host_epoch), self._tasks)

    async def __cleanup__(self, error: Exception | None) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _run(self, seen_epoch: int) -> None:
        pause_s = _PAUSE_MIN_S
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            epoch = self._hosts.host_epoch
            if epoch == seen_epoch:
                continue
            is_whole = False
            with suppress(MeshError):
                is_whole = await self._controller.recover.call_one()
            if is_whole:
                seen_epoch, pause_s = epoch, _PAUSE_MIN_S
                continue
            _logger.warning("a host that returned does not show its files yet")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
