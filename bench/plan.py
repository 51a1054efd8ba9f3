"""Which runs answer the chosen rows, in which order."""

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
    """Lists the runs of one round: ours, the peer and the floor of a workload in turn.

    Args:
        rows: The rows to answer.
        drivers: Those of ours and the peer's that there is an interpreter for.
        round_index: Zero for the first; what never changes is run in that one only.
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
        # Ours may be driven in other ways than that of one host.
        if OURS in drivers:
            yield row.source
        if row.peer in drivers:
            yield Source(row.source.workload, row.source.metric, row.peer)
    for row in rows:
        if row.floor is not None:
            yield row.floor
        if row.own is not None and OURS in drivers:
            yield row.own
