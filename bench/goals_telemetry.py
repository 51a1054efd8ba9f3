"""The goals of mesh-telemetry, and the measurement for each of them.

The floor column contains the baseline of the goal from the same run: DataFusion over one table with
the same rows in the memory of the program.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.goals import Row, Source
from bench.goals_hosts import NO_PEER

TELEMETRY = "mesh_telemetry"
PEER_TELEMETRY = "monarch_telemetry"
_RATE, _MEMORY, _COUNT = "telemetry_load.rate", "telemetry_load.memory", "telemetry_query.count"
_SMALL, _STACKS, _PAINT = "telemetry_query.small", "telemetry_query.stacks", "telemetry_paint.first"
#: The kinds of queries on stored stacks and on small tables.
STACK_SHAPES = ("count", "filter", "group", "order", "join")
SMALL_SHAPES = ("count", "filter", "join")


def _row(
    workload: str,
    metric: str,
    title: str,
    unit: str,
    *,
    floor: str | None = None,
    ratio: float | None = None,
    limit: float | None = None,
    gain: float | None = None,
    peer: str = PEER_TELEMETRY,
    is_rate: bool = False,
) -> Row:
    return Row(
        workload.partition(".")[2], title, unit, Source(workload, metric, TELEMETRY),
        floor=Source(workload, floor, TELEMETRY) if floor else None,
        peer=peer, floor_ratio=ratio, limit=limit, peer_gain_min=gain, is_rate=is_rate,
    )  # fmt: skip


def _cost_rows() -> Iterator[Row]:
    title = "calls in flight, recorded: share of the rate"
    yield _row(_RATE, "pipelined", title, "", limit=0.97, is_rate=True)
    title = "messages one way, recorded: share of the rate"
    yield _row(_RATE, "one_way", title, "", limit=0.97, is_rate=True)
    title = "memory of telemetry per process, under load"
    yield _row(_MEMORY, "proc", title, "MiB", limit=16.0)
    yield _row(_MEMORY, "folder", "  of its events in memory", "MiB")
    yield _row(_MEMORY, "own", "  of the process itself", "MiB")
    yield _row(_MEMORY, "telemetry_process", "  telemetry process of the host, in addition", "MiB")


def _count_rows() -> Iterator[Row]:
    title = "count where of 1,000,000 rows of 8 processes: bytes sent"
    yield _row(_COUNT, "bytes", title, "B", limit=10_000.0, peer=NO_PEER)
    floor = "  time; floor: DataFusion on one local table"
    yield _row(_COUNT, "p50", floor, "ms", floor="local", ratio=3.0)
    yield _row(_COUNT, "first", "  the first time", "ms", peer=NO_PEER)


def _query_rows() -> Iterator[Row]:
    for shape in STACK_SHAPES:
        title = f"100,000 frames and locals: {shape}"
        yield _row(_STACKS, f"{shape}_same", title, "ms", gain=2.0)
        # A new query has no cached results; the goal applies to the kinds that are expensive to
        # compute.
        gain = 2.0 if shape in ("group", "join") else None
        yield _row(_STACKS, f"{shape}_other", "  a different query each time", "ms", gain=gain)
    for shape in SMALL_SHAPES:
        yield _row(_SMALL, shape, f"small tables: {shape}", "ms", gain=1.0)
    yield _row(_SMALL, "new", "  join, a different query each time", "ms", gain=1.0)


def _paint_rows() -> Iterator[Row]:
    title = "first paint of the dashboard, 10,000 actors"
    yield _row(_PAINT, "paint", title, "s", limit=1.0, peer=NO_PEER)


ROWS: tuple[Row, ...] = (*_cost_rows(), *_count_rows(), *_query_rows(), *_paint_rows())
