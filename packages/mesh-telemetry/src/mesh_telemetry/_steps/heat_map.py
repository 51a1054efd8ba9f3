"""Heat maps of ranks over time: how much each rank delays each training step."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    # Returns the rows of a query with its parameters.
    Rows = Callable[..., Sequence[Mapping[str, Any]]]

__all__ = ["SLOW_DELAY_MIN", "HeatMap", "RankSteps", "heat_map", "trained_meshes"]

# The number of steps that are compared.
_STEPS_MAX = 120
#: Smaller delays, as shares of a step, are noise.
SLOW_DELAY_MIN = 0.03
# Ranks whose latest steps differ by no more train together; one is ahead while it is read.
_AHEAD_MAX = 2


class RankSteps(NamedTuple):
    """The steps of one rank. Times are medians, in microseconds."""

    rank: int
    host: str
    proc: str
    pid: int
    delays: list[float | None]
    """For each step, how much more time this rank needed than the median of all ranks, as a share
    of the duration of the step; waits in collectives do not count. None for unknown steps."""
    delay: float
    """The median of the delays."""
    duration_us: int
    compute_us: int
    input_us: int
    communication_us: int
    cause: str = ""
    """The part of a step for which a slow rank needs more time than the others: `input` or
    `computing`; empty if the rank is not slow."""


class HeatMap(NamedTuple):
    """The latest steps of the ranks of a mesh."""

    mesh: str
    steps: list[int]
    """The numbers of the steps, oldest first."""
    ranks: list[RankSteps]
    """The ranks, in order."""


class _Process(NamedTuple):
    rank: int
    proc: str
    pid: int
    last: int
    """The number of its latest step."""


def trained_meshes(rows: Rows) -> list[str]:
    """Return the names of the meshes that have trained, latest first.

    Args:
        rows: Runs a query.
    """
    found = rows(
        "select mesh, max(began_us) as latest_us from steps group by mesh "
        "order by latest_us desc, mesh"
    )
    return [row["mesh"] for row in found]


def heat_map(rows: Rows, mesh: str) -> HeatMap:
    """Return the heat map of a mesh.

    Args:
        rows: Runs a query.
        mesh: The name of the mesh.
    """
    processes = _latest_processes(rows, mesh)
    if not processes:
        return HeatMap(mesh, [], [])
    last = max(one.last for one in processes)
    # A replaced rank restarts its step numbers, so steps are aligned at the latest step of each
    # rank.
    offsets = {
        (one.proc, one.pid): 0 if last - one.last <= _AHEAD_MAX else last - one.last
        for one in processes
    }
    since = min(one.last for one in processes) - _STEPS_MAX
    found = rows(
        "select proc, pid, host, rank, step, duration_us, compute_us, input_us, communication_us "
        "from steps where mesh = $1 and step > $2",
        mesh,
        since,
    )
    steps = range(last - _STEPS_MAX + 1, last + 1)
    by_process: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {key: {} for key in offsets}
    for row in found:
        key = row["proc"], row["pid"]
        if key in offsets and row["step"] + offsets[key] in steps:
            by_process[key][row["step"] + offsets[key]] = row
    # Steps without any row are left out: the program may number only some of them.
    usual = {
        step: times for step in steps if (times := _usual(by_process.values(), step)) is not None
    }
    ranks = [_rank_steps(own, usual) for own in by_process.values() if own]
    if not ranks:
        return HeatMap(mesh, [], [])
    usual_input_us = median(one.input_us for one in ranks)
    usual_compute_us = median(one.compute_us for one in ranks)
    with_causes = [
        one._replace(
            cause="input"
            if one.input_us - usual_input_us > one.compute_us - usual_compute_us
            else "computing"
        )
        if one.delay >= SLOW_DELAY_MIN
        else one
        for one in ranks
    ]
    return HeatMap(mesh, list(usual), sorted(with_causes, key=lambda one: one.rank))


def _latest_processes(rows: Rows, mesh: str) -> list[_Process]:
    """Return the latest process of each rank; the steps of replaced processes are still present."""
    found = rows(
        "select rank, proc, pid, max(step) as last, max(began_us) as latest_us from steps "
        "where mesh = $1 group by rank, proc, pid",
        mesh,
    )
    latest: dict[int, Mapping[str, Any]] = {}
    for row in sorted(found, key=lambda one: int(one["latest_us"])):
        latest[row["rank"]] = row
    return [_Process(row["rank"], row["proc"], row["pid"], row["last"]) for row in latest.values()]


def _own_us(row: Mapping[str, Any]) -> int:
    return int(row["compute_us"] + row["input_us"])


def _usual(
    processes: Iterable[Mapping[int, Mapping[str, Any]]], step: int
) -> tuple[float, float] | None:
    """Return the median of the own times and of the durations of a step; None if it is unknown."""
    known = [own[step] for own in processes if step in own]
    if not known:
        return None
    return median(map(_own_us, known)), median(row["duration_us"] for row in known)


def _rank_steps(
    own: Mapping[int, Mapping[str, Any]], usual: Mapping[int, tuple[float, float]]
) -> RankSteps:
    delays = [
        (_own_us(own[step]) - own_us) / max(duration_us, 1.0) if step in own else None
        for step, (own_us, duration_us) in usual.items()
    ]
    row = next(iter(own.values()))
    return RankSteps(
        row["rank"],
        row["host"],
        row["proc"],
        row["pid"],
        delays,
        median(each for each in delays if each is not None),
        _median_of(own, "duration_us"),
        _median_of(own, "compute_us"),
        _median_of(own, "input_us"),
        _median_of(own, "communication_us"),
    )


def _median_of(own: Mapping[int, Mapping[str, Any]], name: str) -> int:
    return int(median(row[name] for row in own.values()))
