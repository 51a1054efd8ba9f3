"""Copies the latest events of this host to another one, once per second."""

from __future__ import annotations

import threading

from mesh_core import MeshError
from mesh_telemetry._replicas.folder_changes import FolderChanges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from mesh_telemetry._hosts.host_rows import HostRows

__all__ = ["Replicator"]

_PERIOD_S = 1.0
_REPLY_S = 10.0
# The share of the limit that is sent at once, which bounds the load of the network and of the
# other host.
_SHARE = 8


class Replicator:
    """Copies the events of a host.

    Args:
        host: The number of the host.
        folder: The folder of the host.
        bytes_max: Limit for the copy, in bytes.
    """

    def __init__(self, host: int, folder: Path, bytes_max: int) -> None:
        self._host = host
        self._folder = folder
        self._bytes_max = bytes_max
        self._target: HostRows | None = None
        self._changes = FolderChanges(folder)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def set_target(self, target: HostRows | None) -> None:
        """Copy to another host from now on, from the beginning; None stops copying."""
        with self._lock:
            self._target, self._changes = target, FolderChanges(self._folder)
            if target is not None and self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="mesh-telemetry-replica", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Stop; later calls do nothing."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_REPLY_S)

    def _run(self) -> None:
        while not self._closing.wait(_PERIOD_S):
            with self._lock:
                target, changes = self._target, self._changes
            if target is None:
                continue
            taken = changes.take(self._bytes_max // _SHARE)
            if not taken:
                continue
            try:
                target.store_replica.call_one(self._host, taken).get(_REPLY_S)
            except (MeshError, TimeoutError):
                # The coordinator sets another target if this one is lost. The changes that were
                # taken may be missing there, so the next copy starts from the beginning.
                with self._lock:
                    if changes is self._changes:
                        self._changes = FolderChanges(self._folder)
