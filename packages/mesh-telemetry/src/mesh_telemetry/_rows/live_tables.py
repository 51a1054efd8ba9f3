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
from mesh_telemetry._events.proc_folder import script_folders
from mesh_telemetry._events.process_socket import ACTIVITY, SESSIONS, STACKS, WAITS, request_all
from mesh_telemetry._rows.activity_rows import handler_rows, node_rows
from mesh_telemetry._rows.collective_rows import collective_rows
from mesh_telemetry._rows.columns import batch_of, mixed
from mesh_telemetry._rows.schemas import TABLES
from mesh_telemetry._rows.step_rows import step_rows

try:
    import pynvml
except ImportError:
    pynvml = None

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import pyarrow as pa

    from mesh_telemetry._events.proc_folder import ProcFolder

__all__ = ["live_batches", "request_state"]

_REPLY_TIMEOUT_S = 2.0
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
# Tables of the data that processes and scripts write to files while they train.
_TRAINING = {"collectives": collective_rows, "steps": step_rows}
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
    elif table in _TRAINING:
        hosts = {folder.path.parent for folder in folders if folder.path != folder.spilled}
        scripts = [one for host in sorted(hosts) for one in script_folders(host)]
        rows = [row for folder in (*folders, *scripts) for row in _TRAINING[table](folder)]
    else:
        requests = {
            "active_handlers": (ACTIVITY, handler_rows),
            "actor_nodes": (ACTIVITY, node_rows),
            "debug_sessions": (SESSIONS, _session_rows),
            "stacks": (STACKS, _stack_rows),
            "waits": (WAITS, _wait_rows),
        }
        request, make = requests[table]
        rows = [
            row
            for folder, reply in request_state(folders, request)
            for row in make(reply, folder, now_us)
        ]
    if not rows:
        return []
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["timestamp_us"] = [now_us] * len(rows)
    return [batch_of(TABLES[table], columns, len(rows))]


def request_state(
    folders: Sequence[ProcFolder], request: str, timeout_s: float = _REPLY_TIMEOUT_S
) -> list[tuple[ProcFolder, Any]]:
    """Send a request to live processes; return the responses that arrive in time."""
    alive = {folder.path: folder for folder in folders if folder.is_alive}
    replies = request_all(list(alive), request, timeout_s)
    return [(alive[path], reply) for path, reply in replies.items()]


def _proc_row(folder: ProcFolder) -> dict[str, Any]:
    identity = folder.identity
    row: dict[str, Any] = {
        "mesh": identity.mesh_name,
        "mesh_id": identity.mesh,
        "rank": identity.rank,
        "incarnation": identity.incarnation,
        "pid": identity.pid,
        "state": "dead",
        "cpu_s": None,
        "rss_bytes": None,
        "threads": None,
        "started_us": identity.started_us,
        "kept_bytes": bytes_below(folder.path),
        "host": identity.host_name,
        "proc": identity.proc,
    }
    if folder.is_alive:
        with suppress(OSError, IndexError, ValueError):
            session = Path(f"/proc/{identity.pid}/stat").read_text().rpartition(")")[2].split()
            ticks = int(session[_USER]) + int(session[_SYSTEM])
            row["cpu_s"] = ticks / os.sysconf("SC_CLK_TCK")
            row["rss_bytes"] = int(session[_RSS]) * os.sysconf("SC_PAGE_SIZE")
            row["threads"] = int(session[_THREADS])
            row["state"] = _STATES.get(session[_STATE], session[_STATE])
    return row


def _host_row(folders: Sequence[ProcFolder]) -> dict[str, Any]:
    memory = _proc_table("/proc/meminfo")
    boot_s = _proc_table("/proc/stat").get("btime", 0)
    identity = folders[0].identity
    gpus = _gpus()
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "load_1m": os.getloadavg()[0],
        "memory_total_bytes": memory.get("MemTotal:", 0) * 1024,
        "memory_free_bytes": memory.get("MemAvailable:", 0) * 1024,
        "boot_us": boot_s * 1_000_000,
        "gpus": None if gpus is None else len(gpus),
        "gpus_json": None if gpus is None else json.dumps(gpus),
        "host": identity.host_name,
        "proc": f"{identity.host}.0",
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
    """Return the values that the driver reports for each GPU; None without `pynvml`."""
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


def _wait_rows(reply: Any, folder: ProcFolder, now_us: int) -> list[dict[str, Any]]:
    rows = []
    identity = folder.identity
    for call, proc, port, actor, actor_name, running, endpoint, waited_s in reply:
        if port in folder.own_ports or actor in folder.own_ports or proc in folder.own_procs:
            continue
        since_us = None if waited_s is None else now_us - int(waited_s * 1e6)
        rows.append(
            {
                "actor_id": _actor_id(identity.number, actor) if actor else None,
                "actor": actor_name or None,
                "running": running or None,
                "since_us": since_us,
                "waited_ms": None if waited_s is None else waited_s * 1e3,
                "call": call,
                "endpoint": endpoint or None,
                "for_actor_id": _actor_id(proc, port),
                "for_mesh_id": port,
                "for_proc": f"{proc >> 32}.{proc & 0xFFFF_FFFF}",
                "host": identity.host_name,
                "proc": identity.proc,
            }
        )
    return rows


def _stack_rows(reply: Any, folder: ProcFolder, now_us: int) -> list[dict[str, Any]]:
    identity = folder.identity
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
            "host": identity.host_name,
            "proc": identity.proc,
        }
        for thread, ident, task, task_id, frames in reply
        if task not in _OWN_TASKS
        for depth, (function, file, line) in enumerate(frames)
    ]


def _session_rows(reply: Any, folder: ProcFolder, now_us: int) -> list[dict[str, Any]]:
    identity = folder.identity
    names = ("id", "kind", "actor", "rank", "function", "file", "line", "since_us", "attached")
    return [
        {
            **{name: session[name] for name in names},
            "actor_id": _actor_id(identity.number, session["port"]) if session["port"] else None,
            "mesh": identity.mesh_name,
            "host": identity.host_name,
            "proc": identity.proc,
        }
        for session in reply
    ]


def _actor_id(proc: int, port: int) -> int:
    return int(mixed(np.uint64(proc), np.uint64(port)))
