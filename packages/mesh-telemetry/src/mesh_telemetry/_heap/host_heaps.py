"""Heap snapshots of the processes of one host."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mesh_telemetry._errors import HeapError
from mesh_telemetry._events.folders import is_locked
from mesh_telemetry._events.proc_folder import proc_folders
from mesh_telemetry._events.process_socket import request_all
from mesh_telemetry._heap.report_process import run_report
from mesh_telemetry._heap.snapshot import HostHeap
from mesh_telemetry._heap.tables import heap_rows
from mesh_telemetry._heap.tracked_process import HEAP_FOLDER, HEAP_START, HEAP_STOP, unfinished
from mesh_telemetry._stacks.folder import StackFolder
from mesh_telemetry._stacks.tables import store_rows

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_telemetry._events.proc_folder import ProcFolder
    from mesh_telemetry._heap.options import HeapOptions
    from mesh_telemetry._options import TelemetryConfig

__all__ = ["HEAP_MORE_S", "HostHeaps"]

#: Additional time of a snapshot: to load memray, and to read and draw the result.
HEAP_MORE_S = 60.0
# The space for the rows of all snapshots of a host.
_ROWS_BYTES_MAX = 16 << 20
_CONCURRENT_MAX = 4
# Longer than a process waits for memray to start.
_START_S, _STOP_S = 15.0, 1.0
_POLL_S = 0.05
# The time between the end of the connections of a killed process and the end of its threads.
_EXIT_S = 1.0
# The size of a file of memray.
_FILE_BYTES_MAX = 512 << 20


class HostHeaps:
    """Takes heap snapshots of the processes of a host, and stores their rows.

    Args:
        host_folder: The folder of the host.
        host_name: The host name of the machine.
        config: The options.
    """

    def __init__(self, host_folder: Path, host_name: str, config: TelemetryConfig) -> None:
        self._host_folder = host_folder
        self._host_name = host_name
        self._kept = StackFolder(
            host_folder / HEAP_FOLDER, bytes_max=_ROWS_BYTES_MAX, retention_s=config.retention_s
        )
        self._running: set[asyncio.Task[Any]] = set()

    async def take(self, snapshot_id: str, proc: str, options: HeapOptions) -> HostHeap:
        """Track the allocations of a process for some seconds.

        Args:
            snapshot_id: The id of the snapshot.
            proc: The name of the process.
            options: The options of the snapshot.

        Raises:
            HeapError: No snapshot could be taken.
            StorageError: The space is insufficient.
        """
        if len(self._running) >= _CONCURRENT_MAX:
            raise HeapError(
                f"too many concurrent heap snapshots (limit {_CONCURRENT_MAX}): try again later"
            )
        current = asyncio.current_task()
        assert current is not None, "endpoints run in tasks"
        self._running.add(current)
        try:
            return await self._take(snapshot_id, proc, options)
        finally:
            self._running.discard(current)

    async def close(self) -> None:
        """Cancel all snapshots in progress."""
        for task in self._running:
            task.cancel()
        await asyncio.to_thread(self._kept.close)

    async def _take(self, snapshot_id: str, proc: str, options: HeapOptions) -> HostHeap:
        folder = (await asyncio.to_thread(self._live_procs)).get(proc)
        if folder is None:
            raise HeapError(f"no process {proc} runs here: query `procs` for the running ones")
        deadline = time.monotonic() + options.seconds + HEAP_MORE_S
        path = self._kept.temporary_path()
        try:
            await _track(folder, path, options, deadline)
            found, html = await run_report(path, options, deadline)
        except HeapError as error:
            cause = str(error) if is_locked(folder.path) else "it has exited"
            raise HeapError(f"process {proc}: {cause}") from None
        finally:
            for left in (path, unfinished(path)):
                with suppress(OSError):
                    left.unlink(missing_ok=True)
        return await asyncio.to_thread(self._store, snapshot_id, folder, options, found, html)

    def _store(
        self,
        snapshot_id: str,
        folder: ProcFolder,
        options: HeapOptions,
        found: list[list[Any]],
        html: str,
    ) -> HostHeap:
        identity = folder.identity
        now_us = time.time_ns() // 1000
        origin = {
            "snapshot_id": snapshot_id,
            "timestamp_us": now_us,
            "pid": identity.pid,
            "kind": "peak" if options.is_peak else "left",
            "host": self._host_name,
            "proc": identity.proc,
        }
        batch = heap_rows(found, origin)
        store_rows(self._kept, now_us, {"heap": batch})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return HostHeap(sink.getvalue().to_pybytes(), html)

    def _live_procs(self) -> dict[str, ProcFolder]:
        """Return the live recorded processes of this host."""
        folders = proc_folders(self._host_folder, None)
        return {folder.identity.proc: folder for folder in folders if folder.is_alive}


async def _has_exited(folder: ProcFolder) -> bool:
    """Return whether a process has exited or is exiting.

    The socket of a process that was killed is closed before its lock is released.
    """
    until = time.monotonic() + _EXIT_S
    while is_locked(folder.path):
        if time.monotonic() > until:
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def _track(folder: ProcFolder, path: Path, options: HeapOptions, deadline: float) -> None:
    """Let a process track its allocations, and wait until it has written them to a file."""
    request = f"{HEAP_START} {path.name} {options.words()}"
    try:
        replies = await asyncio.to_thread(request_all, [folder.path], request, _START_S)
        if folder.path not in replies:
            if await _has_exited(folder):
                raise HeapError("it has exited")
            raise HeapError(
                "it does not reply: use `pyspy_dump` to see what it executes, since a thread may "
                "hold the GIL"
            )
        if replies[folder.path] is not None:
            raise HeapError(replies[folder.path])
        while not await asyncio.to_thread(path.exists):
            if not is_locked(folder.path):
                raise HeapError("it has exited")
            if time.monotonic() > deadline:
                raise HeapError("it did not write the snapshot in time: track for fewer seconds")
            await asyncio.sleep(_POLL_S)
    except BaseException:
        stop = f"{HEAP_STOP} {path.name}"
        await asyncio.shield(asyncio.to_thread(request_all, [folder.path], stop, _STOP_S))
        raise
    size = (await asyncio.to_thread(path.stat)).st_size
    if size > _FILE_BYTES_MAX:
        raise HeapError(
            f"the snapshot has {size} bytes, and the limit is {_FILE_BYTES_MAX}: track for fewer "
            "seconds, or without native frames and objects"
        )
