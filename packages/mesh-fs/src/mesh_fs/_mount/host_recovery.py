"""Processes of this package on hosts that were lost, and are there again."""

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

#: How often it is looked whether another machine has come in the place of a lost one.
_LOOK_S = 0.25
_ANSWER_S = 10.0
#: What cannot be shown there is tried again; the pause doubles each time.
_PAUSE_MIN_S = 0.5
_PAUSE_MAX_S = 30.0

_logger = logging.getLogger("mesh_fs")


def restart_process(hosts: HostMesh, procs: ProcMesh, rank: int) -> bool:
    """Has a process run, with its actors, where its host is there; says whether that is.

    A host that is lost is left as it is: whether something takes its place is up to the program.

    Args:
        hosts: Where the processes are, in the order of their ranks and in the dimension `host`.
        procs: The processes, one for each host; the caller's.
        rank: Which of them.

    Raises:
        MeshError: The host is there, and the process cannot be started.
    """
    try:
        hosts.slice(host=rank).initialized.get(timeout=_ANSWER_S)
    except (HostDied, TimeoutError):
        return False
    try:
        procs.replace(rank)
    except MeshError:
        raise
    except RuntimeError:
        return True  # It lives.
    return True


class RecoveryMonitor(Actor):
    """Tells when machines take the places of lost ones.

    Args:
        hosts: Of which hosts.
        controller: Has them show what the others show.
    """

    def __init__(self, hosts: HostMesh, controller: MountController) -> None:
        self._hosts = hosts
        self._controller = controller
        self._tasks: set[asyncio.Task[None]] = set()

    @endpoint
    async def begin(self) -> None:
        """Begins to look."""
        in_background(self._run(self._hosts.host_epoch), self._tasks)

    async def __cleanup__(self, error: Exception | None) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _run(self, told: int) -> None:
        pause_s = _PAUSE_MIN_S
        while True:
            await asyncio.sleep(_LOOK_S)
            epoch = self._hosts.host_epoch
            if epoch == told:
                continue
            is_whole = False
            with suppress(MeshError):
                is_whole = await self._controller.recover.call_one()
            if is_whole:
                told, pause_s = epoch, _PAUSE_MIN_S
                continue
            _logger.warning("a host that is there again does not show its files yet")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
