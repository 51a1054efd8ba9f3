"""Finds the ranks that make all others wait, although they join every collective."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mesh_telemetry._collectives.collectives_file import Collective
    from mesh_telemetry._hangs.process_state import ProcessState

__all__ = ["SlowRank", "find_slow_ranks"]

_NS = 1_000_000_000
# Ranks are compared over blocks of consecutive operations, whose times vary less than those of
# single operations.
_BLOCKS = 24
_OPERATIONS_MIN = 4 * _BLOCKS
# A slow rank needs this much more time than the others in total, and more time in this many blocks.
# A rank that is not slow needs more time in that many blocks once in 100,000 comparisons.
_EXCESS_MIN = 0.03
_BLOCKS_MIN = 22
_CAUSES = {"": "", "input": ", for its data loader", "computing": ", for computing"}


class SlowRank(NamedTuple):
    """A rank that needs more time than the others between collectives."""

    rank: int
    """The rank in the world of the process group."""
    excess: float
    """How much more time it needs than the median of the others: 0.05 for 5 percent."""
    mesh: str
    proc: str
    """Its process, such as `1.3`."""
    pid: int
    host: str
    group: str
    """The name of the process group."""
    cause: str = ""
    """The cause of the additional time, from the table `steps`: `input` if it waits for its data
    loader, or `computing`; empty if it has recorded no steps."""

    def __str__(self) -> str:
        text = (
            f"rank {self.rank} of {self.mesh!r} (process {self.proc}, pid {self.pid}, host "
            f"{self.host}) needs {self.excess:.0%} more time than the others between collectives"
        )
        return text + _CAUSES[self.cause]


class _Times(NamedTuple):
    """The time that a member needed before each operation of a group."""

    state: ProcessState
    rank: int
    by_sequence: Mapping[int, float]


def find_slow_ranks(states: Iterable[ProcessState]) -> list[SlowRank]:
    """Compare the ranks of each group by the time that they need between collectives.

    The time in collectives does not count, because the other ranks spend it waiting. Only the
    clock of each host is used, so clocks need not agree.
    """
    groups: dict[tuple[str, str], list[_Times]] = defaultdict(list)
    for state in states:
        for group in state.groups:
            times = _times_before(state.collectives, group.number)
            groups[group.world, group.name].append(_Times(state, group.ranks[group.rank], times))
    return [slow for (_, name), members in groups.items() for slow in _slow_in(name, members)]


def _times_before(collectives: Sequence[Collective], group: int) -> dict[int, float]:
    """Return the time between the end of the previous operation and each one, in seconds."""
    found = {}
    ended_ns = 0
    for one in collectives:
        if one.group == group and not one.is_peer_to_peer and ended_ns:
            found[one.sequence] = max(one.entered_ns - ended_ns, 0) / _NS
        ended_ns = max(ended_ns, one.left_ns)
    return found


def _slow_in(name: str, members: Sequence[_Times]) -> list[SlowRank]:
    """Return the slow ranks of one group."""
    if len(members) < 2:
        return []
    shared = sorted(set.intersection(*(set(one.by_sequence) for one in members)))
    if len(shared) < _OPERATIONS_MIN:
        return []
    blocks = [_blocks_of(one.by_sequence, shared) for one in members]
    found = []
    for at, member in enumerate(members):
        others = [blocks[number] for number in range(len(members)) if number != at]
        usual = [median(block) for block in zip(*others, strict=True)]
        # A single long pause does not affect the median over blocks.
        excesses = [
            mine / theirs - 1 for mine, theirs in zip(blocks[at], usual, strict=True) if theirs
        ]
        excess = median(excesses) if excesses else 0.0
        if excess >= _EXCESS_MIN and sum(each > 0 for each in excesses) >= _BLOCKS_MIN:
            state = member.state
            found.append(
                SlowRank(
                    member.rank, excess, state.mesh, state.name, state.pid, state.host_name, name
                )
            )
    return found


def _blocks_of(times: Mapping[int, float], sequences: Sequence[int]) -> list[float]:
    """Return the sums of the times in blocks of equal length; the latest operations count."""
    length = len(sequences) // _BLOCKS
    latest = sequences[-length * _BLOCKS :]
    return [
        sum(times[sequence] for sequence in latest[at * length : (at + 1) * length])
        for at in range(_BLOCKS)
    ]
