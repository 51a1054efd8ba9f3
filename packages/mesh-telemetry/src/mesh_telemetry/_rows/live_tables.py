"""Live tables: processes, the host, waits, stacks."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mesh_telemetry._events.folders import bytes_below
from mesh_telemetry._events.own_meshes import OWN_NAMES
from mesh_telemetry._events.process_socket import ACTIVITY, SESSIONS, STACKS, WAITS, ask_all
from mesh_telemetry._rows.activity_rows import handler_rows, node_rows
from mesh_telemetry._rows.columns import batch_of, mixed
from mesh_telemetry._rows.schemas import TABLES

try:
    import pynvml
except ImportError:
    pynvml = None

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import pyarrow as pa

    from mesh_telemetry._events.proc_folder import ProcFolder

__all__ = ["live_batches", "said_by"]

_ANSWER_S = 2.0
# Names of the tasks in which the core serves the actors of telemetry itself.
_OWN_TASKS = frozenset(f"mesh-{name}" for name in OWN_NAMES)
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting",
    "T": "stopped",
    "t": "stopped",
    "Z": "zombie",
    "I": "idle",
    "X": "dead",
}
# Positions in `/proc/<pid>/stat` after the name in parentheses: state, user and system time,
# threads, pages.
_STATE, _USER, _SYSTEM, _THREADS, _RSS = 0, 11, 12, 17, 21


def live_batches(table: str, folders: Sequence[ProcFolder]) -> list[pa.RecordBatch]:
    """Build a live table for the processes of some folders."""
    now_us = time.time_ns() // 1000
    if table == "procs":
        rows = [_proc_row(folder) for folder in folders]
    elif table == "hosts":
        rows = [_host_row(folders)] if folders else []
    else:
        ask = {
            "active_handlers": (ACTIVITY, handler_rows),
            "actor_nodes": (ACTIVITY, node_rows),
            "debug_sessions": (SESSIONS, _session_rows),
            "stacks": (STACKS, _stack_rows),
            "waits": (WAITS, _wait_rows),
        }
        word, make = ask[table]
        rows = [
            row for folder, answer in said_by(folders, word) for row in make(answer, folder, now_us)
        ]
    if not rows:
        return []
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["timestamp_us"] = [now_us] * len(rows)
    return [batch_of(TABLES[table], columns, len(rows))]


def said_by(
    folders: Sequence[ProcFolder], word: str, timeout_s: float = _ANSWER_S
) -> list[tuple[ProcFolder, Any]]:
    """Send a request to live processes; return the responses that arrive in time."""
    living = {folder.path: folder for folder in folders if folder.is_alive}
    answers = ask_all(list(living), word, timeout_s)
    return [(living[path], answer) for path, answer in answers.items()]


def _proc_row(folder: ProcFolder) -> dict[str, Any]:
    place = folder.place
    row: dict[str, Any] = {
        "mesh": place.mesh_name,
        "mesh_id": place.mesh,
        "rank": place.rank,
        "incarnation": place.incarnation,
        "pid": place.pid,
        "state": "dead",
        "cpu_s": None,
        "rss_bytes": None,
        "threads": None,
        "started_us": place.started_us,
        "kept_bytes": bytes_below(folder.path),
        "host": place.host_name,
        "proc": place.proc,
    }
    if folder.is_alive:
        with suppress(OSError, IndexError, ValueError):
            said = Path(f"/proc/{place.pid}/stat").read_text().rpartition(")")[2].split()
            ticks = int(said[_USER]) + int(said[_SYSTEM])
            row["cpu_s"] = ticks / os.sysconf("SC_CLK_TCK")
            row["rss_bytes"] = int(said[_RSS]) * os.sysconf("SC_PAGE_SIZE")
            row["threads"] = int(said[_THREADS])
            row["state"] = _STATES.get(said[_STATE], said[_STATE])
    return row


def _host_row(folders: Sequence[ProcFolder]) -> dict[str, Any]:
    memory = _proc_table("/proc/meminfo")
    boot_s = _proc_table("/proc/stat").get("btime", 0)
    place = folders[0].place
    gpus = _gpus()
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "load_1m": os.getloadavg()[0],
        "memory_total_bytes": memory.get("MemTotal:", 0) * 1024,
        "memory_free_bytes": memory.get("MemAvailable:", 0) * 1024,
        "boot_us": boot_s * 1_000_000,
        "gpus": None if gpus is None else len(gpus),
        "gpus_json": None if gpus is None else json.dumps(gpus),
        "host": place.host_name,
        "proc": f"{place.host}.0",
    }


def _proc_table(path: str) -> dict[str, int]:
    """Parse lines of a name and a number."""
    found = {}
    with suppress(OSError):
        for line in Path(path).read_text().splitlines():
            words = line.split()
            if len(words) >= 2 and words[1].isdecimal():
                found[words[0]] = int(words[1])
    return found


def _gpus() -> list[dict[str, Any]] | None:
    """Return what the driver reports for each GPU; None without `pynvml`."""
    if pynvml is None:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            use = pynvml.nvmlDeviceGetUtilizationRates(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            found.append(
                {
                    "index": index,
                    "name": name.decode() if isinstance(name, bytes) else name,
                    "memory_total_bytes": memory.total,
                    "memory_used_bytes": memory.used,
                    "use_percent": use.gpu,
                }
            )
        return found
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _wait_rows(answer: Any, folder: ProcFolder, now_us: int) -> list[dict[str, Any]]:
    rows = []
    place = folder.place
    for call, proc, port, actor, actor_name, running, endpoint, waited_s in answer:
        if port in folder.own_ports or actor in folder.own_ports or proc in folder.own_procs:
            continue
        since_us = None if waited_s is None else now_us - int(waited_s * 1e6)
        rows.append(
            {
                "actor_id": _actor_id(place.number, actor) if actor else None,
                "actor": actor_name or None,
                "running": running or None,
                "since_us": since_us,
                "waited_ms": None if waited_s is None else waited_s * 1e3,
                "call": call,
                "endpoint": endpoint or None,
                "for_actor_id": _actor_id(proc, port),
                "for_mesh_id": port,
                "for_proc": f"{proc >> 32}.{proc & 0xFFFF_FFFF}",
                "host": place.host_name,
                "proc": place.proc,
            }
        )
    return rows


def _stack_rows(answer: Any, folder: ProcFolder, now_us: int) -> list[dict[str, Any]]:
    place = folder.place
    return [
        {
            "thread": thread,
            "thread_id": ident,
            "task": task,
            "task_id": task_id,
            "depth": depth,
            "function": function,
            "file": file,
            "line": line,
            "host": place.host_name,
            "proc": place.proc,
        }
        for thread, ident, task, task_id, frames in answer
        if task not in _OWN_TASKS
        for depth, (function, file, line) in enumerate(frames)
    ]


def _session_rows(answer: Any, folder: ProcFolder, now_us: int) -> list[dict[str, Any]]:
    place = folder.place
    names = ("id", "kind", "actor", "rank", "function", "file", "line", "since_us", "attached")
    return [
        {
            **{name: said[name] for name in names},
            "actor_id": _actor_id(place.number, said["port"]) if said["port"] else None,
            "mesh": place.mesh_name,
            "host": place.host_name,
            "proc": place.proc,
        }
        for said in answer
    ]


def _actor_id(proc: int, port: int) -> int:
    return int(mixed(np.uint64(proc), np.uint64(port)))
