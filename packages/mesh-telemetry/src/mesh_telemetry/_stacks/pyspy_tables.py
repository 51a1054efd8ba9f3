"""Converts a JSON dump of py-spy to the rows of four tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._rows.columns import batch_of
from mesh_telemetry._rows.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import pyarrow as pa

__all__ = ["PYSPY_TABLES", "DumpOrigin", "dump_rows"]

PYSPY_TABLES = ("pyspy_dumps", "pyspy_stack_traces", "pyspy_frames", "pyspy_local_variables")


@dataclass(frozen=True)
class DumpOrigin:
    """The origin of a dump, limited to values that the dump does not contain.

    Attributes:
        dump_id: Its id.
        timestamp_us: When it is stored, in microseconds since the epoch.
        host: The host name of the machine.
        proc: The process, such as `0.3`.
        proc_ref: The name that the creator of the dump uses for the process.
    """

    dump_id: str
    timestamp_us: int
    host: str
    proc: str
    proc_ref: str


def dump_rows(dump_json: str | Mapping[str, Any], origin: DumpOrigin) -> dict[str, pa.RecordBatch]:
    """Convert a dump to rows.

    Args:
        dump_json: JSON, or the decoded object: the list of threads that `py-spy dump --json`
            prints, or an object that contains it as `stack_traces` in addition to `pid`, `binary`,
            `capture_mode` and `warnings`. The object may be the value of `Ok`.
        origin: The origin of the dump.

    Returns:
        The rows by table.

    Raises:
        TelemetryError: The text is not a dump, or is a failed dump.
    """
    try:
        dump = _unwrapped(json.loads(dump_json) if isinstance(dump_json, str) else dump_json)
        threads = dump["stack_traces"]
        pid = dump.get("pid")
        if pid is None:
            pid = threads[0]["pid"] if threads else 0
        made: dict[str, dict[str, list[Any]]] = {
            "pyspy_dumps": {
                "pid": [pid],
                "binary": [dump.get("binary") or ""],
                "proc_ref": [origin.proc_ref],
                "capture_mode": [dump.get("capture_mode") or "python_only"],
                "warnings_json": [json.dumps(dump.get("warnings") or [])],
            },
            "pyspy_stack_traces": _threads(threads, pid),
            **_frames_and_locals(threads, pid),
        }
        return {table: _batch(table, made[table], origin) for table in PYSPY_TABLES}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        # These include the errors of Arrow.
        raise TelemetryError(
            f"not a dump of py-spy ({type(error).__name__}: {error}): pass the output of `py-spy "
            "dump --json`"
        ) from error


def _unwrapped(dump_json: Any) -> Mapping[str, Any]:
    """Return a dump as an object, removing any wrapper."""
    if isinstance(dump_json, list):
        return {"stack_traces": dump_json}
    if "Ok" in dump_json:
        dump_json = dump_json["Ok"]
    if "stack_traces" not in dump_json:
        raise ValueError(
            f"it has no stack_traces, but {', '.join(map(str, dump_json)) or 'nothing'}"
        )
    found: Mapping[str, Any] = dump_json
    return found


def _threads(threads: Sequence[Any], pid: int) -> dict[str, list[Any]]:
    return {
        "pid": [thread.get("pid", pid) for thread in threads],
        "thread_id": [thread["thread_id"] for thread in threads],
        "thread_name": [thread.get("thread_name") for thread in threads],
        "os_thread_id": [thread.get("os_thread_id") for thread in threads],
        "active": [bool(thread.get("active")) for thread in threads],
        "owns_gil": [bool(thread.get("owns_gil")) for thread in threads],
    }


def _frames_and_locals(threads: Sequence[Any], pid: int) -> dict[str, dict[str, list[Any]]]:
    frames = [
        ((thread.get("pid", pid), thread["thread_id"]), depth, frame)
        for thread in threads
        for depth, frame in enumerate(thread.get("frames") or ())
    ]
    variables = list(
        chain.from_iterable(
            ((thread, depth, variable) for variable in frame.get("locals") or ())
            for thread, depth, frame in frames
        )
    )
    return {
        "pyspy_frames": {
            "pid": [thread[0] for thread, _, _ in frames],
            "thread_id": [thread[1] for thread, _, _ in frames],
            "frame_depth": [depth for _, depth, _ in frames],
            "name": [frame["name"] for _, _, frame in frames],
            "filename": [frame["filename"] for _, _, frame in frames],
            "module": [frame.get("module") for _, _, frame in frames],
            "short_filename": [frame.get("short_filename") for _, _, frame in frames],
            "line": [frame.get("line") or 0 for _, _, frame in frames],
            "is_entry": [bool(frame.get("is_entry")) for _, _, frame in frames],
        },
        "pyspy_local_variables": {
            "pid": [thread[0] for thread, _, _ in variables],
            "thread_id": [thread[1] for thread, _, _ in variables],
            "frame_depth": [depth for _, depth, _ in variables],
            "name": [variable["name"] for _, _, variable in variables],
            "addr": [variable.get("addr") or 0 for _, _, variable in variables],
            "arg": [bool(variable.get("arg")) for _, _, variable in variables],
            "repr": [variable.get("repr") for _, _, variable in variables],
        },
    }


def _batch(table: str, columns: dict[str, list[Any]], origin: DumpOrigin) -> pa.RecordBatch:
    length = len(next(iter(columns.values())))
    where = {
        "dump_id": origin.dump_id,
        "timestamp_us": origin.timestamp_us,
        "host": origin.host,
        "proc": origin.proc,
    }
    return batch_of(TABLES[table], {**columns, **where}, length)
