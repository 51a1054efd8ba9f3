"""Operations of process groups that some members have called and that have not ended."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mesh_telemetry._collectives.collectives_file import Collective, ProcessGroup
    from mesh_telemetry._hangs.process_state import ProcessState

__all__ = ["Member", "Stall", "find_stalls"]

_NS = 1_000_000_000


class Member(NamedTuple):
    """A process as a member of a group."""

    state: ProcessState
    group: ProcessGroup
    collectives: tuple[Collective, ...]

    @property
    def rank(self) -> int:
        """The rank in the world."""
        return self.group.ranks[self.group.rank]

    @property
    def last(self) -> Collective | None:
        """The last operation that the process has called and that is still known."""
        return self.collectives[-1] if self.collectives else None

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next operation that the process will call."""
        return 0 if self.last is None else self.last.sequence + 1

    @property
    def is_known(self) -> bool:
        """Whether the current state of its operations is known.

        Operations of a process that has exited, or whose host does not reply, may have ended since
        they were last reported.
        """
        return self.state.state not in "X?"

    def running(self) -> list[Collective]:
        """Return the operations that have not ended, oldest first."""
        return [one for one in self.collectives if not one.left_ns]

    def at(self, sequence: int) -> Collective | None:
        """Return the operation with a sequence number, if it was called and is still known."""
        return next((one for one in self.collectives if one.sequence == sequence), None)

    def longest_pause_s(self) -> float:
        """Return the longest time between the calls of two operations, in seconds."""
        entered = [one.entered_ns for one in self.collectives]
        pauses = [(after - one) / _NS for one, after in pairwise(entered)]
        # The first pause is ignored, because it includes the set-up of the program.
        return max(pauses[1:], default=0.0)


class Stall(NamedTuple):
    """An operation that some members have called and that has not ended."""

    members: Mapping[int, Member]
    """The recorded members, by their rank in the group."""
    joined: Mapping[int, Collective]
    """The operation at each rank that waits in it."""
    sequence: int
    missing: tuple[int, ...]
    """Ranks in the group that have not called it, or that are not recorded."""

    @property
    def any_member(self) -> Member:
        """A member that waits."""
        return self.members[next(iter(self.joined))]

    @property
    def waited_s(self) -> float:
        """How long the first member has waited, in seconds."""
        return max(
            (self.members[rank].state.now_ns - one.entered_ns) / _NS
            for rank, one in self.joined.items()
        )

    def longest_transfer_s(self) -> float:
        """Return how long the longest earlier operation took once all members had called it.

        The member that called an operation last has not waited for any other member.
        """
        shortest: dict[int, float] = {}
        for member in self.members.values():
            for one in member.collectives:
                if one.left_ns:
                    took_s = (one.left_ns - one.entered_ns) / _NS
                    shortest[one.sequence] = min(shortest.get(one.sequence, took_s), took_s)
        return max(shortest.values(), default=0.0)


def find_stalls(states: Iterable[ProcessState]) -> list[Stall]:
    """Return at most one stall of each group, and the stalls of sends and receives."""
    groups: dict[tuple[str, str], dict[int, Member]] = defaultdict(dict)
    for state in states:
        for group in state.groups:
            operations = tuple(
                one
                for one in state.collectives
                if one.group == group.number and not one.is_peer_to_peer
            )
            groups[group.world, group.name][group.rank] = Member(state, group, operations)
    stalls = [stall for members in groups.values() if (stall := _stall_of(members))]
    return stalls + [stall for members in groups.values() for stall in _peer_stalls(members)]


def _stall_of(members: Mapping[int, Member]) -> Stall | None:
    running = {rank: member.running() for rank, member in members.items() if member.is_known}
    sequences = sorted({one.sequence for some in running.values() for one in some})
    stalls = [_stall_at(members, running, sequence) for sequence in sequences]
    joined_by_all = [stall for stall in stalls if not stall.missing]
    for stall in stalls:
        if stall.missing:
            # A rank that is still in an operation that all ranks have called cannot call this one.
            # However, a rank that was stopped, or that holds the GIL, may have left that operation
            # without recording its end.
            late = {rank for rank in stall.missing if _can_write(members.get(rank))}
            return next((one for one in joined_by_all if late & one.joined.keys()), stall)
    return next(iter(joined_by_all), None)


def _can_write(member: Member | None) -> bool:
    """Return whether a process would have written the end of an operation."""
    return (
        member is not None and member.state.state not in "TX?" and member.state.stacks is not None
    )


def _stall_at(
    members: Mapping[int, Member], running: Mapping[int, Sequence[Collective]], sequence: int
) -> Stall:
    joined = {
        rank: one for rank, some in running.items() for one in some if one.sequence == sequence
    }
    size = len(next(iter(members.values())).group.ranks)
    missing = tuple(
        rank
        for rank in range(size)
        if rank not in members or members[rank].next_sequence <= sequence
    )
    return Stall(members, joined, sequence, missing)


def _peer_stalls(members: Mapping[int, Member]) -> list[Stall]:
    """Return for each rank the oldest send or receive that has not ended."""
    stalls = []
    for rank, member in members.items():
        for one in member.state.collectives if member.is_known else ():
            is_running = one.is_peer_to_peer and not one.left_ns and one.peer >= 0
            if is_running and one.group == member.group.number:
                missing = () if _has_called_half(members.get(one.peer), rank, one) else (one.peer,)
                stalls.append(Stall(members, {rank: one}, one.sequence, missing))
                break
    return stalls


def _has_called_half(peer: Member | None, rank: int, one: Collective) -> bool:
    """Return whether the peer has called the other half of a send or receive."""
    half = "recv" if one.operation == "send" else "send"
    return peer is not None and any(
        each.group == peer.group.number
        and (each.operation, each.peer, each.sequence) == (half, rank, one.sequence)
        for each in peer.state.collectives
    )
