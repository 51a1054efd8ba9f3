"""The goals of recordings, and the measurement for each of them.

The floor column contains the same measurement without a recording, from the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.goals import OURS, Row, Source
from bench.goals_hosts import NO_PEER

RECORDED = "mesh_recorded"
#: The goals: this share of the rate without a recording for small messages, and for large ones.
_SMALL, _LARGE = 0.95, 0.9


def _rows() -> Iterator[Row]:
    work = "throughput.sync"
    for metric, title in (("pipelined", "pipelined calls"), ("one_way", "one-way messages")):
        yield Row(
            metric.replace("_", "-"), f"{title}, recorded", "/s",
            Source(work, metric, RECORDED), floor=Source(work, metric, OURS),
            peer=NO_PEER, is_rate=True, floor_ratio=_SMALL,
        )  # fmt: skip
    for label, goal in (("1KB", 1 / _SMALL), ("1MB", 1 / _LARGE)):
        for kind in ("numpy", "bytes"):
            metric = f"{kind}_{label}_p50"
            yield Row(
                "echo", f"echo of {label} of {kind}, recorded, p50", "us",
                Source("payload.echo", metric, RECORDED),
                floor=Source("payload.echo", metric, OURS),
                peer=NO_PEER, floor_ratio=goal,
            )  # fmt: skip


ROWS = tuple(_rows())
