"""Weights from trainers to generators: resharded, and to many at once.

Each round measures everything once, and a copy in one process; the best round counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bench.record import Recorder
from bench.scale import Scale
from bench.workloads.rdma import long_size
from mesh_rdma import (
    Layout,
    RDMABuffer,
    Replicate,
    Schedule,
    Shard,
    plan_reshard,
    replicate,
    spread,
)

if TYPE_CHECKING:
    from bench.drivers.mesh_rdma import RDMADriver

_ROUNDS = 7
_SIDE = 4
_RECEIVERS = 8
_ITEM = 4
_GB = 1e9
#: The layouts of the weights at the generators; each trainer has some rows.
_PLACES = {
    "columns": ([_SIDE], [Shard(1)]),
    "grid": ([2, 2], [Shard(0), Shard(1)]),
    "halves": ([2, 2], [Shard(0), Replicate()]),
}


def reshard(driver: RDMADriver, scale: Scale, record: Recorder) -> None:
    """Reshard an array from four processes to four others with a different layout."""
    part = long_size(scale)
    side = int((part * _SIDE / _ITEM) ** 0.5)
    rows = Layout.of((side, side), _ITEM, [_SIDE], [Shard(0)])
    driver.start(2 * _SIDE)
    runs: dict[str, tuple[int, Callable[[], object]]] = {"memcpy": _copy(part)}
    for kind in ("arena", "plain"):
        srcs = driver.register_each([rows.nbytes(place) for place in range(_SIDE)], kind)
        for name, (mesh, placements) in _PLACES.items():
            layout = Layout.of((side, side), _ITEM, mesh, placements)
            # All have the same length, so that the same memory is reused.
            lengths = [layout.nbytes(place) for place in range(_SIDE)]
            dsts = driver.register_each(lengths, kind, first=_SIDE)
            schedule = plan_reshard(rows, layout)
            runs[f"{kind}_{name}"] = (schedule.nbytes, _run(schedule, srcs, dsts))
    _record(runs, record)
    driver.stop()


def to_many(driver: RDMADriver, scale: Scale, record: Recorder) -> None:
    """Copy one buffer to eight processes, and once to memory that all of them share."""
    nbytes = long_size(scale)
    driver.start(_RECEIVERS + 1)
    (src,) = driver.register_each([nbytes], "arena")
    dsts = driver.register_each([nbytes] * _RECEIVERS, "arena", first=1)
    replicas = replicate(src, dsts).get()
    runs = {
        "memcpy": _copy(nbytes),
        "spread": (nbytes * _RECEIVERS, lambda: spread(src, dsts).get()),
        "replicas": (nbytes, lambda: replicas.refresh(src).get()),
    }
    _record(runs, record)
    driver.stop()


def _run(
    schedule: Schedule, srcs: Sequence[RDMABuffer], dsts: Sequence[RDMABuffer]
) -> Callable[[], object]:
    return lambda: schedule.run(srcs, dsts).get()


def _copy(nbytes: int) -> tuple[int, Callable[[], object]]:
    ours, other = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    return nbytes, lambda: np.copyto(ours, other)


def _record(runs: dict[str, tuple[int, Callable[[], object]]], record: Recorder) -> None:
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(_ROUNDS):
        for name, (_, run) in runs.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started)
    for name, (nbytes, _) in runs.items():
        record.value(name, nbytes / best[name] / _GB, "GB/s")
