"""The goals of mesh-telemetry, and which measurement answers each of them.

The column of the floor has what the goal compares with, from the same run: DataFusion over one
table of the same rows in the memory of the program.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.goals import Row, Source
from bench.goals_hosts import NO_PEER

TELEMETRY = "mesh_telemetry"
PEER_TELEMETRY = "monarch_telemetry"
_RATE, _MEMORY, _COUNT = "telemetry_load.rate", "telemetry_load.memory", "telemetry_query.count"
_SMALL, _STACKS, _PAINT = "telemetry_query.small", "telemetry_query.stacks", "telemetry_paint.first"
#: The shapes of questions about stored stacks, and about small tables.
STACK_SHAPES = ("count", "filter", "group", "join", "order")
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
    yield _row(_MEMORY, "keeper", "  besides, of what answers for the host", "MiB")


def _count_rows() -> Iterator[Row]:
    title = "count where of 1,000,000 rows of 8 processes: bytes sent"
    yield _row(_COUNT, "bytes", title, "B", limit=10_000.0, peer=NO_PEER)
    floor = "  time; floor: DataFusion on one local table"
    yield _row(_COUNT, "p50", floor, "ms", floor="local", ratio=3.0)
    yield _row(_COUNT, "first", "  the first time", "ms", peer=NO_PEER)


def _query_rows() -> Iterator[Row]:
    for shape in STACK_SHAPES:
        title = f"100,000 frames and locals: {shape}"
        yield _row(_STACKS, shape, title, "ms", gain=2.0)
    for shape in SMALL_SHAPES:
        yield _row(_SMALL, shape, f"small tables: {shape}", "ms", gain=1.0)
    yield _row(_SMALL, "new", "  join, another question each time", "ms", gain=1.0)


def _paint_rows() -> Iterator[Row]:
    title = "first paint of the dashboard, 10,000 actors"
    yield _row(_PAINT, "paint", title, "s", limit=1.0, peer=NO_PEER)


ROWS: tuple[Row, ...] = (*_cost_rows(), *_count_rows(), *_query_rows(), *_paint_rows())
