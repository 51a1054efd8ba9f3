"""The goals of mesh-jobs on a cluster, and the measurement for each of them.

The floor column contains a plain `srun` of the same script on as many nodes, in the same run.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.goals import Row, Source
from bench.goals_hosts import NO_PEER

JOBS = "mesh_jobs"
_WORKLOAD = "new_user.slurm"


def _source(metric: str) -> Source:
    return Source(_WORKLOAD, metric, JOBS)


def _rows() -> Iterator[Row]:
    for metric, title in (
        ("fresh", "mesh apply, mesh spmd: to the first step; floor: srun"),
        ("apply", "  of this mesh apply, until all hosts answer"),
        ("again", "  mesh spmd on the same hosts again"),
        ("inside", "mesh run: to the first step; floor: srun"),
    ):
        yield Row("new-user", title, "s", _source(metric), floor=_source("srun"), peer=NO_PEER)
    yield Row("new-user", "mesh kill", "s", _source("kill"), peer=NO_PEER)


ROWS: tuple[Row, ...] = tuple(_rows())
