"""The rows of the comparison: all rows of the table of goals that do not depend on one system."""

from __future__ import annotations

from bench.goals import PEER_POLLING_1S, ROWS, Row

#: Rows that describe a guarantee of Mesh, not a speed.
_OWN_GUARANTEES = ("isolation",)
#: Workloads that are measured by strace, which would slow down the others of a round.
COUNTED = ("anatomy.sync",)

COMPARED: tuple[Row, ...] = tuple(
    row for row in ROWS if row.id not in _OWN_GUARANTEES and row.peer != PEER_POLLING_1S
)

#: The rows of the picture, with short titles.
PICTURED: dict[tuple[str, str], str] = {
    ("sync", "p50"): "call, one at a time",
    ("async", "p50"): "call from asyncio",
    ("pipelined", "pipelined"): "calls per second",
    ("mesh", "per_actor_p50"): "call of 32 actors",
    ("spawn", "ready"): "start 32 processes",
    ("memory", "pss"): "memory of a worker",
    ("echo-1mb", "numpy_1MB_p50"): "1 MB there and back",
    ("echo-64mb", "numpy_64MB_p50"): "64 MB there and back",
    ("failure", "detect_p50"): "failure noticed",
    ("import", "import_cpu"): "import",
}
