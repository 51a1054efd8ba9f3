"""Tables that are decoded from lines: all except messages and live tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from mesh_telemetry._events.measurements import BOUNDS, COUNTER, GAUGE, HISTOGRAM, UP_DOWN_COUNTER
from mesh_telemetry._events.segments import read_lines
from mesh_telemetry._rows.columns import batch_of, call_ids, mixed, proc_names
from mesh_telemetry._rows.schemas import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import pyarrow as pa
    from numpy.typing import NDArray

    from mesh_telemetry._events.proc_folder import ProcFolder, ProcIdentity

    Lines = list[dict[str, Any]]

__all__ = ["LINE_TABLES", "line_batch"]

_STATUSES = {"started": "running", "failed": "failed", "stopped": "stopped"}


def line_batch(
    table: str,
    path: str,
    folder: ProcFolder,
    own_procs: frozenset[int],
    span: tuple[int, int] | None = None,
) -> pa.RecordBatch | None:
    """Return the rows of a table in a segment; None if there are none.

    Args:
        table: Its name.
        path: The segment.
        folder: The folder of its process.
        own_procs: Processes of telemetry itself, which are omitted.
        span: Two lengths of the segment; only the bytes before the second one are read.
    """
    identity, own_ports = folder.identity, folder.own_ports
    _, is_wanted, make = LINE_TABLES[table]
    written = read_lines(path, span[1] if span else None)
    lines = [line for line in map(json.loads, written) if is_wanted(line)]
    if own_ports or own_procs:
        lines = [
            line
            for line in lines
            if line.get("actor") not in own_ports and line.get("peer") not in own_procs
        ]
    if not lines:
        return None
    columns = {"timestamp_us": _of(lines, "t"), "host": identity.host_name, "proc": identity.proc}
    columns |= make(lines, identity)
    return batch_of(TABLES[table], columns, len(lines))


def _of(lines: Lines, name: str, otherwise: object = None) -> list[Any]:
    return [line.get(name, otherwise) for line in lines]


def _numbers(lines: Lines, name: str) -> NDArray[np.uint64]:
    return np.array([line.get(name) or 0 for line in lines], dtype=np.uint64)


def _of_kind(*kinds: object) -> Callable[[dict[str, Any]], bool]:
    return lambda line: line["k"] in kinds


def _actor_ids(lines: Lines, identity: ProcIdentity) -> list[int | None]:
    """Return the ids of the actors that ran; None outside of actors."""
    ids = mixed(identity.number, _numbers(lines, "actor"))
    return [int(id) if line.get("actor") else None for id, line in zip(ids, lines, strict=True)]


def _row_ids(lines: Lines, identity: ProcIdentity) -> NDArray[np.uint64]:
    return mixed(
        identity.token, _numbers(lines, "t"), _numbers(lines, "actor"), np.arange(len(lines))
    )


def _actors(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    ports = _numbers(lines, "actor")
    where = f"{identity.host_name}/{identity.proc}"
    return {
        "id": mixed(identity.number, ports),
        "mesh_id": ports,
        "rank": _of(lines, "rank"),
        "full_name": [f"{where}:{port}" for port in ports],
        "display_name": _of(lines, "text"),
        "class": _of(lines, "class_name"),
        "incarnation": identity.incarnation,
    }


def _meshes(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    where = f"{identity.host_name}/{identity.proc}"
    ports = _of(lines, "actor")
    classes = _of(lines, "class_name")
    return {
        "id": ports,
        "class": [name or "Proc" for name in classes],
        "given_name": _of(lines, "text"),
        "full_name": [f"{where}:{port}" for port in ports],
        "shape_json": [json.dumps(line.get("extent") or {}) for line in lines],
        "size": _of(lines, "size"),
        "parent_mesh_id": [line.get("procs") if line.get("class_name") else None for line in lines],
        "owner_mesh_id": [line.get("call") or None for line in lines],
    }


def _actor_status(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    ports = _numbers(lines, "actor")
    return {
        "id": _row_ids(lines, identity),
        "actor_id": mixed(identity.number, ports),
        "mesh_id": ports,
        "rank": _of(lines, "rank"),
        "new_status": [_STATUSES[line["k"]] for line in lines],
        "reason": _of(lines, "reason"),
    }


def _span_ids(lines: Lines, name: str, identity: ProcIdentity) -> NDArray[np.uint64]:
    return mixed(identity.token, _numbers(lines, name))


def _spans(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    outer = _span_ids(lines, "outer", identity)
    return {
        "process_id": f"{identity.host_name}/{identity.proc}",
        "id": _span_ids(lines, "n", identity),
        "name": _of(lines, "name"),
        "actor_id": _actor_ids(lines, identity),
        "fields_json": _of(lines, "attributes"),
        "parent_id": [
            int(id) if line["outer"] else None for id, line in zip(outer, lines, strict=True)
        ],
        "trace_id": _of(lines, "trace"),
        "span_id": _of(lines, "span"),
        "parent_span_id": _of(lines, "parent"),
        "message_id": _served_ids(lines, identity),
    }


def _served_ids(lines: Lines, identity: ProcIdentity) -> list[int | None]:
    """Return the ids of the messages being served; None if none is, or it expects no reply."""
    ids = call_ids(_numbers(lines, "call"), identity.number, _numbers(lines, "actor"))
    return [int(id) if line.get("call") else None for id, line in zip(ids, lines, strict=True)]


def _span_events(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    return {
        "process_id": f"{identity.host_name}/{identity.proc}",
        "id": _span_ids(lines, "n", identity),
        "event_type": ["enter" if line["k"] == "span_begin" else "close" for line in lines],
        "is_error": [bool(line["code"]) for line in lines],
    }


def _measured(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    return {
        "name": _of(lines, "name"),
        "start_timestamp_us": _of(lines, "start"),
        "unit": _of(lines, "unit"),
        "attributes_json": _of(lines, "attributes"),
        "actor_id": _actor_ids(lines, identity),
    }


def _values(lines: Lines, name: str) -> dict[str, Any]:
    values = _of(lines, "value")
    is_whole = [isinstance(value, int) and -(1 << 63) <= value < 1 << 63 for value in values]
    return {
        f"{name}_f64": [
            None if whole else float(value) for value, whole in zip(values, is_whole, strict=True)
        ],
        f"{name}_i64": [
            value if whole else None for value, whole in zip(values, is_whole, strict=True)
        ],
    }


def _gauges(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    return _measured(lines, identity) | _values(lines, "value")


def _sums(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    kinds = {"temporality": "delta", "is_monotonic": [line["k"] == COUNTER for line in lines]}
    return _measured(lines, identity) | _values(lines, "sum") | kinds


def _histograms(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    return _measured(lines, identity) | {
        "temporality": "delta",
        "count": _of(lines, "n"),
        "sum_f64": [float(line["value"]) for line in lines],
        "min_f64": [float(line["min"]) for line in lines],
        "max_f64": [float(line["max"]) for line in lines],
        "bounds_json": json.dumps(BOUNDS),
        "bucket_counts_json": [json.dumps(line["buckets"]) for line in lines],
    }


def _logs(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    return {
        "mesh": _of(lines, "mesh", ""),
        "mesh_id": _of(lines, "actor"),
        "rank": _of(lines, "rank"),
        "stream": _of(lines, "stream", "stdout"),
        "line": _of(lines, "text"),
        "proc": proc_names(_numbers(lines, "peer")),
    }


def _is_failure(line: dict[str, Any]) -> bool:
    return line["k"] == "failed" or (line["k"] == "proc_died" and bool(line["code"]))


def _failures(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    procs = [line["peer"] or identity.number for line in lines]
    return {
        "kind": ["actor" if line["k"] == "failed" else "proc" for line in lines],
        "mesh": _of(lines, "text"),
        "mesh_id": _of(lines, "actor"),
        "rank": _of(lines, "rank"),
        "reason": [line.get("reason") or _end_of(line) for line in lines],
        "cause": [line.get("cause") or None for line in lines],
        "pid": _of(lines, "pid"),
        "exit_code": _of(lines, "exit_code"),
        "signal": _of(lines, "signal"),
        "log_tail": _of(lines, "log_tail"),
        "proc": proc_names(np.array(procs, dtype=np.uint64)),
    }


def _end_of(line: dict[str, Any]) -> str | None:
    """Describe how a process ended."""
    if line.get("signal") is not None:
        return f"exited with signal {line['signal']}"
    if line.get("exit_code") is not None:
        return f"exited with status {line['exit_code']}"
    return None


def _events(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    peers = proc_names(_numbers(lines, "peer")).to_pylist()
    return {
        "name": _of(lines, "k"),
        "actor": _numbers(lines, "actor"),
        "peer_proc": [
            name if line.get("peer") else None for name, line in zip(peers, lines, strict=True)
        ],
        "call": _numbers(lines, "call"),
        "rank": _numbers(lines, "rank"),
        "code": _numbers(lines, "code"),
        "size": _numbers(lines, "size"),
        "text": _of(lines, "text", ""),
        "fields_json": _of(lines, "attributes", "{}"),
    }


def _dropped(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    return {
        "family": _of(lines, "of"),
        "reason": _of(lines, "reason"),
        "events": _of(lines, "n"),
        "bytes": _of(lines, "bytes"),
    }


def _rows(lines: Lines, identity: ProcIdentity) -> dict[str, Any]:
    return {
        "table_name": _of(lines, "table"),
        "actor_id": _actor_ids(lines, identity),
        "row_json": _of(lines, "row"),
    }


#: By table: the family it is decoded from, the filter of lines, and the decoder.
LINE_TABLES = {
    "actors": ("lifecycle", _of_kind("started"), _actors),
    "meshes": ("lifecycle", _of_kind("spawned"), _meshes),
    "actor_status_events": ("lifecycle", _of_kind(*_STATUSES), _actor_status),
    "failures": ("lifecycle", _is_failure, _failures),
    "events": ("lifecycle", lambda line: line["k"] != "dropped", _events),
    "dropped": ("lifecycle", _of_kind("dropped"), _dropped),
    "logs": ("logs", lambda line: True, _logs),
    "spans": ("spans", _of_kind("span_begin"), _spans),
    "span_events": ("spans", lambda line: True, _span_events),
    "metric_gauges": ("metrics", _of_kind(GAUGE), _gauges),
    "metric_sums": ("metrics", _of_kind(COUNTER, UP_DOWN_COUNTER), _sums),
    "metric_histograms": ("metrics", _of_kind(HISTOGRAM), _histograms),
    "rows": ("rows", lambda line: True, _rows),
}
