"""Simulated processes, in rank groups: those that have had the same to do are kept as one.

A rank group is split when some of its processes are asked for something that the others are not, or
meet others in a collective. So a step of a thousand processes costs no more than that of one, as
long as they do the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_core import Region

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

__all__ = ["HOST", "Lane", "RankGroup", "RankGroups"]

#: The device that every process has: operations on it keep the process itself busy.
HOST = "cpu"


class Lane:
    """A device of a process, or one of its streams: one thing after the other.

    Attributes:
        is_host: Whether the process itself does it, and nothing else meanwhile.
        stream: Which of its streams; 0 is that of programs without any.
        clock_s: Until when it has something to do.
        compute_s: How long it has computed.
        communication_s: How long it has sent and received.
        waiting_s: How long it has waited for other processes, or for other streams.
        starved_s: How long there was nothing for it to do yet.
    """

    __slots__ = (
        "clock_s",
        "communication_s",
        "compute_s",
        "is_host",
        "starved_s",
        "stream",
        "waiting_s",
    )

    def __init__(self, is_host: bool, stream: int, clock_s: float = 0.0) -> None:
        self.is_host = is_host
        self.stream = stream
        self.clock_s = clock_s
        self.compute_s = 0.0
        self.communication_s = 0.0
        self.waiting_s = 0.0
        self.starved_s = 0.0

    def copy(self) -> Lane:
        """Gives one that has done the same."""
        made = Lane(self.is_host, self.stream, self.clock_s)
        made.compute_s = self.compute_s
        made.communication_s = self.communication_s
        made.waiting_s = self.waiting_s
        made.starved_s = self.starved_s
        return made


class RankGroup:
    """Processes that have done the same so far.

    Attributes:
        number: Which one it is.
        ranks: Which processes.
        hosts: Until when each of them is busy with saying what is to be done, by stream.
        lanes: Its devices, by type and stream.
        loans: When tensors were given to another stream, or given back: by their tokens, until
            when the giving stream and its device were busy.
        live: How many bytes there are on each type of device.
        peak: How many there were at most.
        lineage: The rank groups that it was split from, and after which of all events each time.
    """

    __slots__ = ("hosts", "lanes", "lineage", "live", "loans", "number", "peak", "ranks")

    def __init__(self, number: int, ranks: Sequence[int]) -> None:
        self.number = number
        self.ranks = ranks
        self.hosts: dict[int, float] = {}
        self.lanes: dict[tuple[str, int], Lane] = {}
        self.loans: dict[int, tuple[float, float]] = {}
        self.live: dict[str, int] = {}
        self.peak: dict[str, int] = {}
        self.lineage: tuple[tuple[int, int], ...] = ()

    def lane(self, key: tuple[str, int]) -> Lane:
        """Gives a device by its type, and the stream on it."""
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(key[0] == HOST, key[1])
        return lane

    def take_up(self, stream: int, arrived_s: float, dispatch_s: float) -> float:
        """Has the processes be busy with an operation; gives until when."""
        host_s = self.hosts.get(stream, 0.0)
        if arrived_s > host_s:
            host_s = arrived_s
        self.hosts[stream] = host_s = host_s + dispatch_s
        return host_s

    def wait_until(self, stream: int, host_s: float) -> None:
        """Has the processes wait for something, before they go on with a stream."""
        if host_s > self.hosts.get(stream, 0.0):
            self.hosts[stream] = host_s

    def ready_s(self, lane: Lane, arrived_s: float, dispatch_s: float) -> float:
        """Takes an operation up; gives when the lane could begin with it.

        Args:
            lane: Where it is done.
            arrived_s: When the process heard of it.
            dispatch_s: How long the process is busy with having it done.
        """
        host_s = self.take_up(lane.stream, arrived_s, dispatch_s)
        clock_s = lane.clock_s
        if host_s > clock_s:
            lane.starved_s += host_s - clock_s
            lane.clock_s = host_s
            return host_s
        return clock_s

    def done(self, lane: Lane, end_s: float) -> None:
        """Notes until when a lane is busy."""
        lane.clock_s = end_s
        if lane.is_host:
            self.hosts[lane.stream] = end_s

    def allocate(self, device: str, nbytes: int) -> None:
        """Takes memory, or gives it back where that is below zero."""
        live = self.live.get(device, 0) + nbytes
        self.live[device] = live
        if live > self.peak.get(device, 0):
            self.peak[device] = live

    def reset(self) -> None:
        """Begins to count anew, with what is in memory now."""
        self.hosts, self.lanes = {}, {}
        self.loans = dict.fromkeys(self.loans, (0.0, 0.0))
        self.live = {device: nbytes for device, nbytes in self.live.items() if nbytes}
        self.peak = dict(self.live)
        self.lineage = ()

    def end_s(self) -> float:
        """Gives when all is done."""
        clocks = (lane.clock_s for lane in self.lanes.values())
        return max([0.0, *self.hosts.values(), *clocks])


class RankGroups:
    """All simulated processes.

    Args:
        size: How many there are.
        count: Counts the events so far; see `RankGroup.lineage`.
    """

    def __init__(self, size: int, count: Callable[[], int]) -> None:
        self._count = count
        self.all = [RankGroup(0, range(size))]
        #: By rank.
        self._of = [self.all[0]] * size
        #: How often rank groups were split; what is known of rank groups holds until the next time.
        self.version = 0
        self._regions: dict[bytes, tuple[int, list[RankGroup]]] = {}

    def of(self, rank: int) -> RankGroup:
        """Gives that of a process."""
        return self._of[rank]

    def of_region(self, encoded: bytes) -> list[RankGroup]:
        """Gives those of a part of the processes, which are split from the others for it."""
        version, found = self._regions.get(encoded, (-1, []))
        if version == self.version:
            return found
        ranks = Region.decode(encoded).ranks()
        self.split(dict.fromkeys(ranks, True))
        found = self.among(ranks)
        self._regions[encoded] = self.version, found
        return found

    def among(self, ranks: Iterable[int]) -> list[RankGroup]:
        """Gives those that some processes are of."""
        return list({id(self._of[rank]): self._of[rank] for rank in ranks}.values())

    def split(self, marks: Mapping[int, Hashable]) -> None:
        """Splits rank groups so that the ranks of each have the same mark, or none.

        Args:
            marks: By rank.
        """
        parts: dict[int, dict[Hashable, list[int]]] = {}
        for rank in marks:
            rank_group = self._of[rank]
            if rank_group.number not in parts:
                found: dict[Hashable, list[int]] = {}
                for one in rank_group.ranks:
                    found.setdefault(marks.get(one), []).append(one)
                parts[rank_group.number] = found
        for number, found in parts.items():
            if len(found) > 1:
                self._split(self.all[number], list(found.values()))

    def reset(self) -> None:
        """Begins to count anew: processes that have the same in memory are one rank group again."""
        found: dict[Hashable, list[RankGroup]] = {}
        for rank_group in self.all:
            rank_group.reset()
            found.setdefault(frozenset(rank_group.live.items()), []).append(rank_group)
        self.all = [alike[0] for alike in found.values()]
        for number, (rank_group, alike) in enumerate(zip(self.all, found.values(), strict=True)):
            rank_group.number = number
            rank_group.ranks = sorted(rank for one in alike for rank in one.ranks)
            for rank in rank_group.ranks:
                self._of[rank] = rank_group
        self.version += 1

    def _split(self, rank_group: RankGroup, parts: Sequence[Sequence[int]]) -> None:
        self.version += 1
        for ranks in parts[1:]:
            made = RankGroup(len(self.all), ranks)
            made.hosts, made.loans = dict(rank_group.hosts), dict(rank_group.loans)
            made.lanes = {key: lane.copy() for key, lane in rank_group.lanes.items()}
            made.live, made.peak = dict(rank_group.live), dict(rank_group.peak)
            made.lineage = (*rank_group.lineage, (rank_group.number, self._count()))
            self.all.append(made)
            for rank in ranks:
                self._of[rank] = made
        rank_group.ranks = parts[0]
