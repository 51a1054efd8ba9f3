"""The runs that the selected rows require, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.goals import ONCE, OURS, Row, Source


@dataclass(frozen=True)
class Run:
    """One runner process."""

    driver: str
    workload: str
    placement: str


def runs_of_round(rows: Sequence[Row], drivers: Sequence[str], round_index: int) -> list[Run]:
    """List the runs of one round: ours, the peer and the floor of a workload alternate.

    Args:
        rows: The rows to measure.
        drivers: Our drivers and the peer's for which an interpreter is available.
        round_index: Zero for the first; results that never change are measured only there.
    """
    runs: dict[Run, None] = {}
    workloads = dict.fromkeys(row.source.workload for row in rows)
    for workload in workloads:
        if round_index > 0 and workload in ONCE:
            continue
        answered = [row for row in rows if row.source.workload == workload]
        for placement in dict.fromkeys(p for row in answered for p in row.placements):
            for source in _sources(answered, drivers):
                runs[Run(source.driver, source.workload, placement)] = None
    return list(runs)


def _sources(rows: Sequence[Row], drivers: Sequence[str]) -> Iterator[Source]:
    for row in rows:
        # Our column may have drivers other than the one for a single host.
        if OURS in drivers:
            yield row.source
        if row.peer in drivers:
            yield Source(row.source.workload, row.source.metric, row.peer)
    for row in rows:
        if row.floor is not None:
            yield row.floor
        if row.own is not None and OURS in drivers:
            yield row.own
