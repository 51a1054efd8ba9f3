"""Tables that are decoded from message records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mesh_core.spi import MessageLog
from mesh_telemetry._events.segments import read_messages
from mesh_telemetry._rows.columns import NO_NUMBER, batch_of, call_ids, mixed, proc_names
from mesh_telemetry._rows.schemas import TABLES

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from mesh_telemetry._events.proc_folder import ProcFolder, ProcIdentity

    Records = NDArray[np.void]

__all__ = ["MESSAGE_TABLES", "message_batch"]

_RECORD = np.dtype(
    [
        ("at_ns", "<u8"),
        ("port", "<u8"),
        ("peer", "<u8"),
        ("call", "<u8"),
        ("bytes", "<u8"),
        ("rank", "<u4"),
        ("kind", "u1"),
        ("code", "u1"),
        ("endpoint", "<u2"),
        ("sender", "<u8"),
        ("span", "<u8"),
    ]
)
assert _RECORD.itemsize == MessageLog.RECORD.size

# Ports below this are used by Mesh internally.
_PORT_MIN = 16
_KIND = {name: number for number, name in enumerate(MessageLog.KINDS)}
_STATUSES = {
    "received": "queued",
    "taken": "active",
    "answered": "complete",
    "refused": "refused",
    "completed": "returned",
    "cancelled": "cancelled",
}
_BY_CALLER = ("sent", "completed", "cancelled")
_LINKS = ("link_up", "link_down", "peer_died")


def message_batch(
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
        span: Two lengths of the segment in bytes: only records added between them.
    """
    identity, own_ports = folder.identity, folder.own_ports
    content = read_messages(path, span)
    if content is None:
        return None
    base_ns, view = content
    records = np.frombuffer(view, dtype=_RECORD)
    names, make = MESSAGE_TABLES[table]
    is_wanted = np.isin(records["kind"], [_KIND[name] for name in names])
    if own_procs:
        is_wanted &= ~np.isin(records["peer"], np.array(sorted(own_procs), dtype=np.uint64))
    if names is not _LINKS:
        is_wanted &= records["port"] >= _PORT_MIN
        if own_ports:
            is_wanted &= ~np.isin(records["port"], np.array(sorted(own_ports), dtype=np.uint64))
    records = records[is_wanted]
    if not len(records):
        return None
    columns = make(records, identity)
    columns["timestamp_us"] = (records["at_ns"].astype(np.int64) + base_ns) // 1000
    columns["host"], columns["proc"] = identity.host_name, identity.proc
    if "endpoint" in TABLES[table].names:
        # Names are read after the records, because the process writes them before.
        columns["endpoint"] = _endpoints(records, folder.endpoint_names())
    return batch_of(TABLES[table], columns, len(records))


def _ids(records: Records, identity: ProcIdentity) -> NDArray[np.uint64]:
    """Return message ids: by call and receiver, which both sides know, else by time and process."""
    me = np.uint64(identity.number)
    is_caller = np.isin(records["kind"], [_KIND[name] for name in _BY_CALLER])
    callee = np.where(is_caller, records["peer"], me)
    by_call = call_ids(records["call"], callee, records["port"])
    alone = mixed(records["at_ns"], records["port"], records["peer"], identity.token, me)
    return np.where(records["call"] == NO_NUMBER, alone, by_call)


def _calls(records: Records) -> pa.Array:
    return pa.array(records["call"], pa.uint64(), mask=records["call"] == NO_NUMBER)


def _endpoints(records: Records, names: list[str]) -> pa.Array:
    numbers = records["endpoint"].astype(np.int64)
    return pa.array(names, pa.string()).take(
        pa.array(numbers, mask=(numbers == 0) | (numbers >= len(names)))
    )


def _senders(records: Records, procs: NDArray[np.uint64] | int) -> pa.Array:
    ids = mixed(procs, records["sender"])
    return pa.array(ids, mask=records["sender"] == NO_NUMBER)


def _spans(records: Records) -> pa.Array:
    known, identities = np.unique(records["span"], return_inverse=True)
    names = [f"{int(span):016x}" if span else None for span in known]
    return pa.array(names, pa.string()).take(pa.array(identities.reshape(-1)))


def _sent(records: Records, identity: ProcIdentity) -> dict[str, Any]:
    return {
        "id": _ids(records, identity),
        "actor_mesh_id": records["port"],
        "rank": records["rank"],
        "call": _calls(records),
        "bytes": records["bytes"],
        "to_proc": proc_names(records["peer"]),
        "sender_actor_id": _senders(records, identity.number),
        "parent_span_id": _spans(records),
    }


def _received(records: Records, identity: ProcIdentity) -> dict[str, Any]:
    return {
        "id": _ids(records, identity),
        "to_actor_id": mixed(identity.number, records["port"]),
        "mesh_id": records["port"],
        "rank": records["rank"],
        "call": _calls(records),
        "bytes": records["bytes"],
        "from_proc": proc_names(records["peer"]),
        "from_actor_id": _senders(records, records["peer"]),
        "parent_span_id": _spans(records),
    }


def _status(records: Records, identity: ProcIdentity) -> dict[str, Any]:
    ids = _ids(records, identity)
    kinds = records["kind"]
    words = np.array([_STATUSES.get(name, "") for name in MessageLog.KINDS] + ["failed"])
    is_failed = (kinds == _KIND["answered"]) & (records["code"] != 0)
    at = np.where(is_failed, len(MessageLog.KINDS), kinds)
    is_known = (records["call"] != NO_NUMBER) | (kinds == _KIND["received"])
    return {
        "id": mixed(ids, kinds.astype(np.uint64), records["at_ns"]),
        "message_id": pa.array(ids, mask=~is_known),
        "status": pa.array(words).cast(pa.string()).take(pa.array(at.astype(np.int64))),
        "code": records["code"].astype(np.uint64),
        "mesh_id": records["port"],
        "rank": records["rank"],
    }


def _links(records: Records, identity: ProcIdentity) -> dict[str, Any]:
    names = pa.array(MessageLog.KINDS, pa.string())
    return {
        "name": names.take(pa.array(records["kind"].astype(np.int64))),
        "actor": 0,
        "peer_proc": proc_names(records["peer"]),
        "call": 0,
        "rank": 0,
        "code": 0,
        "size": 0,
        "text": "",
        "fields_json": "{}",
    }


#: By table: the kinds of records, and the decoder.
MESSAGE_TABLES = {
    "sent_messages": (("sent",), _sent),
    "messages": (("received",), _received),
    "message_status_events": (tuple(_STATUSES), _status),
    "events": (_LINKS, _links),
}
