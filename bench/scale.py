"""The amount of work of each workload in one run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """The sizes of one run: `QUICK` checks that everything works, `FULL` is for reports."""

    #: Calls before the measurement.
    warm_calls: int
    #: Blocks of calls; each yields one median.
    blocks: int
    #: Calls in a block.
    block_calls: int
    #: Number of concurrent calls, and of one-way messages.
    stream_len: int
    #: Processes of the mesh, spawn and cast workloads.
    procs: int
    #: Time limit of a block of calls, in seconds.
    block_s_max: float
    #: Kills per run, and the time limit for all of them.
    kills: int
    kills_s_max: float
    #: Fresh interpreters that are started to measure an import.
    imports: int
    #: Payloads as (label, bytes, repetitions).
    payloads: tuple[tuple[str, int, int], ...]
    #: Casts of the large payload.
    casts: int


FULL = Scale(
    warm_calls=300,
    blocks=5,
    block_calls=400,
    stream_len=20_000,
    procs=32,
    block_s_max=4.0,
    kills=100,
    kills_s_max=25.0,
    imports=9,
    payloads=(("1KB", 1 << 10, 500), ("1MB", 1 << 20, 40), ("64MB", 64 << 20, 7)),
    casts=5,
)

QUICK = Scale(
    warm_calls=100,
    blocks=2,
    block_calls=150,
    stream_len=2_000,
    procs=8,
    block_s_max=1.0,
    kills=10,
    kills_s_max=8.0,
    imports=3,
    payloads=(("1KB", 1 << 10, 50), ("1MB", 1 << 20, 10), ("64MB", 64 << 20, 3)),
    casts=2,
)
