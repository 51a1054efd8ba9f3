"""Finds the ranks that keep others waiting, from two observations of all processes.

In the graph of waits, a process that is in a collective points at the members of the group that
have not called it. The culprits are the processes at the ends of the paths, which themselves wait
in no collective, or the smaller side of a cycle. The kind of the hang follows from the stacks of a
culprit, its state in the kernel, and its pending calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from mesh_telemetry._hangs.culprits import (
    STOPPED,
    caller_in,
    culprit_in_call,
    culprit_of_call,
    culprit_out_of_call,
    current_line,
    wait_of,
)
from mesh_telemetry._hangs.hang import Culprit, Hang, WaitingCollective
from mesh_telemetry._hangs.stalls import find_stalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mesh_telemetry._collectives.collectives_file import Collective
    from mesh_telemetry._hangs.process_state import ProcessState
    from mesh_telemetry._hangs.stalls import Member, Stall

    # `ProcessState.key`.
    _Key = tuple[int, int]

__all__ = ["find_hangs"]

_NS = 1_000_000_000
# Operations for which all ranks must pass tensors of the same size.
_SAME_SIZE = frozenset({"all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter"})
# A process is busy if it uses a processor or waits for one for this share of the time, or if it
# reads or writes this many bytes per second.
_BUSY_SHARE, _BUSY_IO_BYTES = 0.3, 1 << 20
# A busy rank may still continue. Its hang is certain after this time, and after this many times the
# longest earlier pause of the group.
_BUSY_S, _BUSY_PAUSES = 10.0, 10
# The same for ranks that wait for something.
_BLOCKED_PAUSES = 3
# During this many first operations of a group, its ranks may still load data, compile or start up.
# The duration of that is unknown, so a late rank is suspected only after this time.
_SETUP_OPERATIONS, _SETUP_S = 3, 10.0
# A host on a busy machine may reply late. It counts as lost after this time without a reply.
_SILENT_S = 2.0
# An operation that all ranks have joined is certain to hang after this many times the longest
# transfer of an earlier one.
_LINK_TIMES = 5


def find_hangs(
    before: Iterable[ProcessState], now: Iterable[ProcessState], patience_s: float
) -> list[Hang]:
    """Find the ranks that keep others waiting.

    Args:
        before: The processes some time earlier.
        now: The processes.
        patience_s: How long an operation may take before a rank is suspected, in seconds.

    Returns:
        The hangs; `is_certain` is set if the evidence shows that the culprits cannot continue.
    """
    return _Analysis(before, now, patience_s).hangs()


class _Analysis:
    def __init__(
        self, before: Iterable[ProcessState], now: Iterable[ProcessState], patience_s: float
    ) -> None:
        self._before = {one.key: one for one in before}
        self._states = {one.key: one for one in now}
        # Scripts have no actors that others could call.
        self._procs = {one.proc: one for one in self._states.values() if not one.is_script}
        self._patience_s = patience_s
        self._stalls = find_stalls(self._states.values())
        self._waiting_for = self._edges()

    def hangs(self) -> list[Hang]:
        """Return a hang for each culprit or group of culprits."""
        found: dict[object, Hang] = {}
        for stall in self._stalls:
            for hang in self._hangs_of(stall):
                found.setdefault(hang.key[0], hang)
        return list(found.values())

    def _edges(self) -> dict[_Key, set[_Key]]:
        """Return for each waiting process the processes that it waits for."""
        edges: dict[_Key, set[_Key]] = defaultdict(set)
        for stall in self._stalls:
            others = {
                stall.members[rank].state.key for rank in stall.missing if rank in stall.members
            }
            for rank in stall.joined:
                edges[stall.members[rank].state.key] |= others
        in_collective = set(edges)
        for state in self._procs.values():
            wait = wait_of(state)
            # A call of a process that is in a collective is described as a deadlock.
            awaited = None if wait is None else self._procs.get(wait.proc)
            if awaited is not None and not {state.key, awaited.key} & in_collective:
                edges[state.key].add(awaited.key)
        return edges

    def _hangs_of(self, stall: Stall) -> list[Hang]:
        at = _described(stall)
        unknown = [rank for rank in stall.missing if rank not in stall.members]
        if unknown:
            ranks = stall.any_member.group.ranks
            culprits = tuple(
                Culprit(ranks[rank], "lost", "has exited, or is not recorded") for rank in unknown
            )
            return [Hang("lost", at, culprits, self._is_certain(stall, "lost", _is_setup(stall)))]
        if not stall.missing:
            return [self._all_joined(stall, at)]
        roots = self._roots(stall)
        return [self._hang_at(state, stall, at) for state in roots] or [self._cycle(stall)]

    def _roots(self, stall: Stall) -> list[ProcessState]:
        """Return the processes at the ends of all paths of waits; none if the paths are cycles."""
        found = []
        seen: set[_Key] = set()
        left = [stall.members[rank].state.key for rank in stall.missing]
        while left:
            key = left.pop()
            if key in seen:
                continue
            seen.add(key)
            if self._waiting_for.get(key):
                left += self._waiting_for[key]
            else:
                found.append(self._states[key])
        return found

    def _hang_at(self, state: ProcessState, stall: Stall, at: WaitingCollective) -> Hang:
        """Describe a process at the end of a path of waits."""
        is_busy = self._is_busy(state)
        member = next((one for one in stall.members.values() if one.state is state), None)
        caller = self._caller_of(state)
        wait = None if caller is None else wait_of(caller)
        if member is None and caller is not None and wait is not None:
            culprit = culprit_of_call(state, wait, caller)
        else:
            culprit = culprit_out_of_call(state, member, self._awaited(state), is_busy=is_busy)
        if culprit.kind == "missing_call":
            may_continue = self._is_called(state)
        elif state.state == "?":
            may_continue = state.silent_s < _SILENT_S
        else:
            may_continue = culprit.kind not in ("stopped", "deadlock", "lost") and (
                is_busy or self._has_moved(state, member)
            )
        return Hang(
            culprit.kind, at, (culprit,), self._is_certain(stall, culprit.kind, may_continue)
        )

    def _cycle(self, stall: Stall) -> Hang:
        """Describe ranks that wait for each other in different groups: the smaller side."""
        sides = [one for one in self._stalls if one.missing]
        smallest = min(sides, key=lambda one: (len(one.joined), one.any_member.rank))
        largest = max(sides, key=lambda one: (len(one.joined), -one.any_member.rank))
        group, others = smallest.any_member.group.name, _described(largest)
        culprits = tuple(
            culprit_in_call(
                smallest.members[rank],
                "different_order",
                f"is in {one.operation} #{one.sequence} of group {group!r}, which others call "
                f"after {others.operation} #{others.sequence} of group {others.group!r}",
                one,
            )
            for rank, one in smallest.joined.items()
        )
        is_certain = stall.waited_s >= self._patience_s
        return Hang("different_order", others, culprits, is_certain)

    def _all_joined(self, stall: Stall, at: WaitingCollective) -> Hang:
        """Describe an operation that does not end although all ranks have called it."""
        is_over = stall.waited_s >= self._patience_s
        mismatch = _mismatch(stall)
        if mismatch is not None:
            kind, culprits = mismatch
            return Hang(kind, at, culprits, is_over)
        members = stall.members.values()
        stopped = [one for one in members if one.state.state == "T"]
        if stopped:
            culprits = tuple(culprit_in_call(one, "stopped", STOPPED, None) for one in stopped)
            return Hang("stopped", at, culprits, is_over)
        silent = [one for one in members if one.state.state == "?"]
        if silent:
            may_continue = min(one.state.silent_s for one in silent) < _SILENT_S
            culprits = tuple(
                culprit_out_of_call(one.state, one, None, is_busy=False) for one in silent
            )
            return Hang("lost", at, culprits, self._is_certain(stall, "lost", may_continue))
        reason = (
            "has joined, as all ranks have, but no data arrives: the network between the hosts is "
            "slow or broken"
        )
        culprits = tuple(
            culprit_in_call(stall.members[rank], "link", reason, one)
            for rank, one in stall.joined.items()
        )
        is_idle = not any(self._is_busy(member.state) for member in members)
        limit_s = _LINK_TIMES * stall.longest_transfer_s()
        return Hang("link", at, culprits, is_over and is_idle and stall.waited_s >= limit_s)

    def _caller_of(self, state: ProcessState) -> ProcessState | None:
        """Return a process whose actor awaits a reply of another one."""
        for other in self._procs.values():
            wait = wait_of(other)
            if wait is not None and wait.proc == state.proc:
                return other
        return None

    def _awaited(self, state: ProcessState) -> tuple[str, str] | None:
        """Return kind and description of the reply that a process awaits, if any."""
        wait = wait_of(state)
        if wait is None:
            return None
        other = self._procs.get(wait.proc)
        who = f"process {wait.proc >> 32}.{wait.proc & 0xFFFF_FFFF}"
        if other is not None:
            who = f"rank {other.rank} of {other.mesh!r}"
        if other is not None and any(not one.left_ns for one in other.collectives):
            return "deadlock", f"waits for {wait.endpoint!r} of {who}, which is in a collective"
        return "blocked", f"waits for the reply of {wait.endpoint!r} from {who}"

    def _is_called(self, state: ProcessState) -> bool:
        """Return whether a call to an idle process is in flight."""
        return any(
            wait.proc == state.proc
            for other in self._procs.values()
            for wait in other.waits
            if other is not state
        )

    def _is_busy(self, state: ProcessState) -> bool:
        """Return whether a process computes, or reads or writes files, or would if it could run."""
        before = self._before.get(state.key)
        if before is None or before is state:
            return state.is_busy
        passed_s = max((state.now_ns - before.now_ns) / _NS, 1e-3)
        share = (state.cpu_s - before.cpu_s) / passed_s
        io_rate = (state.io_bytes - before.io_bytes) / passed_s
        is_busy = share >= _BUSY_SHARE or io_rate >= _BUSY_IO_BYTES
        return is_busy or (before.is_busy and state.is_busy)

    def _has_moved(self, state: ProcessState, member: Member | None) -> bool:
        """Return whether a process has reached another line between the observations."""
        before = self._before.get(state.key)
        if before is None or before.stacks is None or state.stacks is None:
            return False
        last = None if member is None else member.last
        return current_line(before, last) != current_line(state, last)

    def _is_certain(self, stall: Stall, kind: str, may_continue: bool) -> bool:
        pause_s = max(member.longest_pause_s() for member in stall.members.values())
        limit_s = self._patience_s
        if may_continue:
            limit_s = max(_BUSY_S, _BUSY_PAUSES * pause_s)
        elif kind not in ("stopped", "deadlock", "lost"):
            limit_s = max(limit_s, _BLOCKED_PAUSES * pause_s, _SETUP_S * _is_setup(stall))
        return stall.waited_s >= limit_s


def _is_setup(stall: Stall) -> bool:
    return stall.sequence < _SETUP_OPERATIONS


def _described(stall: Stall) -> WaitingCollective:
    one = next(iter(stall.joined.values()))
    group = stall.any_member.group
    return WaitingCollective(
        one.operation,
        stall.sequence,
        group.name,
        group.world,
        tuple(sorted(group.ranks[rank] for rank in stall.joined)),
        stall.waited_s,
        caller_in(one),
    )


def _mismatch(stall: Stall) -> tuple[str, tuple[Culprit, ...]] | None:
    """Return the ranks that have called a different operation than most, or passed another size."""
    calls = {
        rank: one
        for rank, member in stall.members.items()
        if (one := member.at(stall.sequence)) is not None
    }
    if any(one.is_peer_to_peer for one in stall.joined.values()):
        return None
    for kind, value_of, reason, shown in (
        ("different_order", _operation, "has called {} where others have called {}", _operation),
        ("shape_mismatch", _size, "passes {} where others pass {}", _shape),
    ):
        usual = _usual(calls, value_of)
        culprits = tuple(
            culprit_in_call(stall.members[rank], kind, reason.format(shown(one), shown(usual)), one)
            for rank, one in calls.items()
            if value_of(one) != value_of(usual)
        )
        if culprits:
            return kind, culprits
    return None


def _operation(one: Collective) -> str:
    return f"{one.operation} (root {one.peer})" if one.peer >= 0 else one.operation


def _size(one: Collective) -> str:
    return str(one.nbytes) if one.operation in _SAME_SIZE else ""


def _shape(one: Collective) -> str:
    return one.shape


def _usual(calls: Mapping[int, Collective], value_of: Callable[[Collective], str]) -> Collective:
    """Return a call with the most frequent value; the lowest rank decides between equal counts."""
    values = {rank: value_of(one) for rank, one in calls.items()}
    counts = Counter(values.values())
    return calls[min(values, key=lambda rank: (-counts[values[rank]], rank))]
