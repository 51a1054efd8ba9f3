"""Refreshes a mount whenever its directory has changed."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING

from mesh_core import Actor, MeshError, endpoint
from mesh_fs._delivery.fetcher import in_background
from mesh_fs._watch.inotify import InotifyWatches

if TYPE_CHECKING:
    from mesh_fs._delivery.source import Source
    from mesh_fs._mount.controller import MountController

__all__ = ["Watcher"]

#: A refresh waits until nothing has changed for `_DEBOUNCE_S`, but at most for `_DEBOUNCE_MAX_S`.
_DEBOUNCE_S = 0.05
_DEBOUNCE_MAX_S = 0.5
#: The pause before a failed refresh is retried. It doubles each time, up to the maximum.
_PAUSE_MIN_S = 0.5
_PAUSE_MAX_S = 30.0

_logger = logging.getLogger("mesh_fs")


class Watcher(Actor):
    """Watches one directory, in the process that serves it.

    Args:
        root: The directory.
        source: The source. Only the directories in its snapshot are watched.
        controller: Refreshes the mount on the hosts.
    """

    def __init__(self, root: str, source: Source, controller: MountController) -> None:
        self._root = root
        self._source = source
        self._controller = controller
        self._watches: InotifyWatches | None = None
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @endpoint
    async def begin(self) -> None:
        """Start watching.

        Raises:
            WatchError: The kernel does not permit watching all directories.
        """
        self._watches = InotifyWatches()
        await self._update_watches(self._watches)
        asyncio.get_running_loop().add_reader(self._watches, self._on_events, self._watches)
        # The first refresh covers changes that were made before watching started.
        self._changed.set()
        in_background(self._run(self._watches), self._tasks)

    @endpoint
    async def end(self) -> None:
        """Stop watching; a refresh that is already running completes."""
        self._stop_watching()

    async def __cleanup__(self, error: Exception | None) -> None:
        self._stop_watching()

    def _stop_watching(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        watches, self._watches = self._watches, None
        if watches is not None:
            asyncio.get_running_loop().remove_reader(watches)
            watches.close()

    def _on_events(self, watches: InotifyWatches) -> None:
        if watches.take():
            self._changed.set()

    async def _run(self, watches: InotifyWatches) -> None:
        pause_s = _PAUSE_MIN_S
        while True:
            await self._changed.wait()
            await self._debounce()
            self._changed.clear()
            try:
                await self._controller.refresh.call_one()
                # Another refresh covers files that were created in a new directory before it was
                # watched.
                if await self._update_watches(watches):
                    self._changed.set()
                pause_s = _PAUSE_MIN_S
            except MeshError as error:
                _logger.warning("changes of %s are not shown yet, retrying: %s", self._root, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                self._changed.set()

    async def _debounce(self) -> None:
        """Wait until writers have paused, up to a limit."""
        latest = time.monotonic() + _DEBOUNCE_MAX_S
        while time.monotonic() < latest:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), _DEBOUNCE_S)
            except TimeoutError:
                return

    async def _update_watches(self, watches: InotifyWatches) -> bool:
        inner = await self._source.directories.call_one()
        return watches.watch_only([self._root, *(os.path.join(self._root, one) for one in inner)])
