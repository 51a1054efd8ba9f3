"""Requests for heap snapshots to hosts, and their results."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa

from mesh_telemetry._errors import HeapError
from mesh_telemetry._heap.host_heaps import HEAP_MORE_S
from mesh_telemetry._heap.snapshot import HeapSnapshot
from mesh_telemetry._rows.schemas import TABLES
from mesh_telemetry._stacks.dump import ProcFailure
from mesh_telemetry._stacks.requests import outcomes_of, write_graphs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from mesh_telemetry._heap.options import HeapOptions
    from mesh_telemetry._hosts.coordinator import Coordinator
    from mesh_telemetry._query.deadline import Cancellation
    from mesh_telemetry._stacks.requests import SendRequest

__all__ = ["heap_snapshot_of"]

_HOSTS_S = 10.0
_CAUSES_MAX = 3
# Hosts enforce the deadline; this is the additional time for hosts that do not respond.
_MORE_S = 10.0


def heap_snapshot_of(
    coordinator: Coordinator,
    procs: Sequence[str],
    options: HeapOptions,
    path: str | PathLike[str] | None = None,
    cancellation: Cancellation | None = None,
) -> HeapSnapshot:
    """Track the allocations of processes concurrently.

    Args:
        coordinator: The actor that knows the hosts.
        procs: The processes, such as `0.3`.
        options: The options of the snapshot.
        path: Where to write the flame graph or graphs.
        cancellation: Cancels the snapshot; the processes then stop tracking.

    Raises:
        HeapError: No snapshot of any process could be taken.
    """
    hosts = {str(host.number): host for host in coordinator.hosts.call_one().get(_HOSTS_S)}
    snapshot_id = uuid.uuid4().hex
    failed, requests = [], []
    for proc in dict.fromkeys(procs):
        host = hosts.get(proc.partition(".")[0])
        if host is None:
            failed.append(ProcFailure("", proc, "its host is unknown"))
        else:
            requests.append((proc, host))

    def request(proc: str) -> SendRequest:
        return lambda rows: rows.snapshot_heap.call_one(snapshot_id, proc, options)

    limit_s = options.seconds + HEAP_MORE_S + _MORE_S
    outcomes = outcomes_of(
        [(host, request(proc)) for proc, host in requests], limit_s, cancellation
    )
    batches: list[pa.RecordBatch] = []
    htmls: dict[str, str] = {}
    for (proc, host), outcome in zip(requests, outcomes, strict=True):
        if outcome.error is None:
            htmls[proc] = outcome.value.html
            batches += pa.ipc.open_stream(outcome.value.rows)
        else:
            failed.append(ProcFailure(host.name, proc, outcome.error))
    if failed and not htmls:
        raise HeapError(_described(failed))
    table = pa.Table.from_batches(batches, TABLES["heap"])
    write_graphs(htmls, path, ".html")
    return HeapSnapshot(snapshot_id, table, htmls, tuple(failed))


def _described(failed: Sequence[ProcFailure]) -> str:
    causes = [
        one.cause if one.cause.startswith("process ") else f"process {one.proc}: {one.cause}"
        for one in failed[:_CAUSES_MAX]
    ]
    more = len(failed) - len(causes)
    rest = f"; and {more} more" if more > 0 else ""
    return f"no heap snapshot was taken: {'; '.join(causes)}{rest}"
