"""Stacks of the processes of one host, taken with py-spy and stored there."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mesh_telemetry._errors import PySpyError, TelemetryError
from mesh_telemetry._events.folders import is_locked
from mesh_telemetry._events.proc_folder import proc_folders
from mesh_telemetry._stacks.dump import HostDump, ProcFailure
from mesh_telemetry._stacks.folder import STACK_FOLDER, StackFolder
from mesh_telemetry._stacks.pyspy_program import PySpy, PySpyRunError, found_program
from mesh_telemetry._stacks.pyspy_tables import DumpOrigin
from mesh_telemetry._stacks.tables import store_dump

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_telemetry._events.proc_folder import ProcFolder
    from mesh_telemetry._options import TelemetryConfig
    from mesh_telemetry._stacks.dump import DumpOptions
    from mesh_telemetry._stacks.flame_graph import FlameOptions
    from mesh_telemetry._stacks.pyspy_program import DumpOutput

__all__ = ["HostStacks"]

_CONCURRENT_DUMPS_MAX = 4
_CONCURRENT_RECORDINGS_MAX = 4
# Additional time of a recording: to start, and to write the graph.
_RECORDING_MORE_S = 30.0


class HostStacks:
    """Takes stacks on a host with py-spy, and stores them.

    Args:
        host_folder: The folder of the host.
        host_name: The host name of the machine.
        config: The options.
    """

    def __init__(self, host_folder: Path, host_name: str, config: TelemetryConfig) -> None:
        self._host_folder = host_folder
        self._host_name = host_name
        self._kept = StackFolder(
            host_folder / STACK_FOLDER,
            bytes_max=config.stacks_bytes,
            retention_s=config.retention_s,
        )
        self._spies: set[PySpy] = set()
        self._dumps = asyncio.Semaphore(_CONCURRENT_DUMPS_MAX)
        self._recordings = 0

    def store(self, dump_id: str, proc: str, dump_json: str) -> None:
        """Store a dump that another program has made.

        Raises:
            TelemetryError: The text is not a dump.
            StorageError: The space is insufficient.
        """
        now_us = time.time_ns() // 1000
        store_dump(self._kept, dump_json, DumpOrigin(dump_id, now_us, self._host_name, proc, proc))

    async def dump(
        self, dump_id: str, procs: frozenset[str] | None, options: DumpOptions, timeout_s: float
    ) -> HostDump:
        """Take and store the stacks of processes.

        Args:
            dump_id: The id of the dump.
            procs: The names of the processes; None for all live ones.
            options: The options of the dump.
            timeout_s: Processes that have not been read after this time have failed.

        Raises:
            PySpyError: py-spy is not installed on this host.
        """
        deadline = time.monotonic() + timeout_s
        living = await asyncio.to_thread(self._live_procs)
        gone = sorted((procs or frozenset()) - living.keys())
        wanted = sorted(living if procs is None else procs & living.keys())
        failed = [self._failure(proc, "no such process runs here") for proc in gone]
        if not wanted:
            return HostDump((), tuple(failed))
        spy = PySpy(found_program())
        self._spies.add(spy)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        self._dump_process(spy, dump_id, living[proc], options, deadline)
                    )
                    for proc in wanted
                ]
        finally:
            self._spies.discard(spy)
        causes = dict(zip(wanted, (task.result() for task in tasks), strict=True))
        failed += [self._failure(proc, cause) for proc, cause in causes.items() if cause]
        return HostDump(tuple(proc for proc, cause in causes.items() if not cause), tuple(failed))

    async def record(self, proc: str, options: FlameOptions) -> str:
        """Sample the stacks of a process; return the flame graph as SVG.

        Raises:
            PySpyError: The process could not be sampled.
        """
        folder = (await asyncio.to_thread(self._live_procs)).get(proc)
        if folder is None:
            raise PySpyError(f"no process {proc} runs here: query `procs` for the running ones")
        if self._recordings >= _CONCURRENT_RECORDINGS_MAX:
            raise PySpyError(
                f"too many concurrent recordings (limit {_CONCURRENT_RECORDINGS_MAX}): try again"
                " later"
            )
        deadline = time.monotonic() + options.seconds + _RECORDING_MORE_S
        spy = PySpy(found_program())
        self._spies.add(spy)
        self._recordings += 1
        try:
            into = self._kept.temporary_path()
            return await spy.record(folder.identity.pid, options.words(), into, deadline)
        except PySpyRunError as failed:
            raise PySpyError(f"process {proc}: {_cause(failed, folder)}") from None
        finally:
            self._recordings -= 1
            self._spies.discard(spy)

    async def close(self) -> None:
        """Stop all running dumps and recordings."""
        await asyncio.gather(*(spy.close() for spy in list(self._spies)))
        await asyncio.to_thread(self._kept.close)

    def _live_procs(self) -> dict[str, ProcFolder]:
        """Return the live recorded processes of this host."""
        folders = proc_folders(self._host_folder, None)
        return {folder.identity.proc: folder for folder in folders if folder.is_alive}

    async def _dump_process(
        self,
        spy: PySpy,
        dump_id: str,
        folder: ProcFolder,
        options: DumpOptions,
        deadline: float,
    ) -> str | None:
        """Take and store the stacks of a process; return the cause if that fails."""
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                await self._dumps.acquire()
        except TimeoutError:
            return "it was not reached in time: increase the timeout"
        try:
            dumped = await spy.dump(folder.identity.pid, options.words(), deadline)
            await asyncio.to_thread(self._store, dump_id, folder, dumped)
        except PySpyRunError as failed:
            return _cause(failed, folder)
        except TelemetryError as error:
            return str(error)
        finally:
            self._dumps.release()
        return None

    def _store(self, dump_id: str, folder: ProcFolder, dumped: DumpOutput) -> None:
        identity = folder.identity
        binary = ""
        with suppress(OSError):
            binary = os.readlink(f"/proc/{identity.pid}/exe")
        dump = {
            "pid": identity.pid,
            "binary": binary,
            "stack_traces": json.loads(dumped.output),
            "capture_mode": "native" if dumped.is_native else "python_only",
            "warnings": dumped.warnings,
        }
        origin = DumpOrigin(
            dump_id,
            time.time_ns() // 1000,
            identity.host_name,
            identity.proc,
            f"{identity.host_name}/{identity.proc}",
        )
        store_dump(self._kept, dump, origin)

    def _failure(self, proc: str, cause: str) -> ProcFailure:
        return ProcFailure(self._host_name, proc, cause)


def _cause(failed: PySpyRunError, folder: ProcFolder) -> str:
    return str(failed) if is_locked(folder.path) else "it has exited"
