"""Simulated processes, in rank groups: processes that have done the same are simulated once.

A rank group is split when an operation applies to some of its processes only, or when its processes
meet different processes in a collective. A step of a thousand processes therefore costs no more
than a step of one, as long as they do the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_core import Region

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

__all__ = ["HOST", "DeviceStream", "RankGroup", "RankGroups"]

#: The device that every process has. Operations on it occupy the process itself.
HOST = "cpu"


class DeviceStream:
    """A device of a process, or one of its streams. It executes one operation at a time.

    Attributes:
        is_host: Whether the process itself executes the operations and is blocked by them.
        stream: The number of the stream; 0 is the default stream.
        clock_s: The time until which it is busy, in seconds.
        compute_s: The time it has computed.
        communication_s: The time it has sent and received.
        waiting_s: The time it has waited for other processes or other streams.
        starved_s: The time it has had no work yet.
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

    def copy(self) -> DeviceStream:
        """Return a copy with the same history."""
        made = DeviceStream(self.is_host, self.stream, self.clock_s)
        made.compute_s = self.compute_s
        made.communication_s = self.communication_s
        made.waiting_s = self.waiting_s
        made.starved_s = self.starved_s
        return made


class RankGroup:
    """Processes that have done the same so far.

    Attributes:
        number: The number of the group.
        ranks: The processes.
        hosts: For each stream, the time until which each process is busy with dispatching.
        device_streams: The devices, by type and stream.
        syncs: For each token of a tensor that was shared with another stream or released, the times
            until which the stream and its device were busy.
        live: The memory in use on each type of device, in bytes.
        peak: The maximum of `live`.
        lineage: The rank groups from which it was split, and the number of events at each split.
    """

    __slots__ = ("device_streams", "hosts", "lineage", "live", "number", "peak", "ranks", "syncs")

    def __init__(self, number: int, ranks: Sequence[int]) -> None:
        self.number = number
        self.ranks = ranks
        self.hosts: dict[int, float] = {}
        self.device_streams: dict[tuple[str, int], DeviceStream] = {}
        self.syncs: dict[int, tuple[float, float]] = {}
        self.live: dict[str, int] = {}
        self.peak: dict[str, int] = {}
        self.lineage: tuple[tuple[int, int], ...] = ()

    def device_stream(self, key: tuple[str, int]) -> DeviceStream:
        """Return the stream with a number on a device type; create it if necessary."""
        device_stream = self.device_streams.get(key)
        if device_stream is None:
            device_stream = self.device_streams[key] = DeviceStream(key[0] == HOST, key[1])
        return device_stream

    def dispatch(self, stream: int, arrived_s: float, dispatch_s: float) -> float:
        """Let the processes dispatch an operation; return the time when they have finished."""
        host_s = self.hosts.get(stream, 0.0)
        if arrived_s > host_s:
            host_s = arrived_s
        self.hosts[stream] = host_s = host_s + dispatch_s
        return host_s

    def wait_until(self, stream: int, host_s: float) -> None:
        """Let the processes wait until a time before they continue with a stream."""
        if host_s > self.hosts.get(stream, 0.0):
            self.hosts[stream] = host_s

    def ready_s(self, device_stream: DeviceStream, arrived_s: float, dispatch_s: float) -> float:
        """Dispatch an operation; return the time when the device stream can begin with it.

        Args:
            device_stream: The device stream that executes it.
            arrived_s: The time when the operation has arrived at the process.
            dispatch_s: The time that the process needs to dispatch it.
        """
        host_s = self.dispatch(device_stream.stream, arrived_s, dispatch_s)
        clock_s = device_stream.clock_s
        if host_s > clock_s:
            device_stream.starved_s += host_s - clock_s
            device_stream.clock_s = host_s
            return host_s
        return clock_s

    def done(self, device_stream: DeviceStream, end_s: float) -> None:
        """Record the time until which a device stream is busy."""
        device_stream.clock_s = end_s
        if device_stream.is_host:
            self.hosts[device_stream.stream] = end_s

    def allocate(self, device: str, nbytes: int) -> None:
        """Allocate memory, or free it if `nbytes` is negative."""
        live = self.live.get(device, 0) + nbytes
        self.live[device] = live
        if live > self.peak.get(device, 0):
            self.peak[device] = live

    def reset(self) -> None:
        """Reset the clocks and totals, and keep the memory in use."""
        self.hosts, self.device_streams = {}, {}
        self.syncs = dict.fromkeys(self.syncs, (0.0, 0.0))
        self.live = {device: nbytes for device, nbytes in self.live.items() if nbytes}
        self.peak = dict(self.live)
        self.lineage = ()

    def end_s(self) -> float:
        """Return the time when all device streams have finished."""
        clocks = (device_stream.clock_s for device_stream in self.device_streams.values())
        return max([0.0, *self.hosts.values(), *clocks])


class RankGroups:
    """All simulated processes.

    Args:
        size: The number of processes.
        count: Returns the number of events so far; see `RankGroup.lineage`.
    """

    def __init__(self, size: int, count: Callable[[], int]) -> None:
        self._count = count
        self.all = [RankGroup(0, range(size))]
        #: By rank.
        self._of = [self.all[0]] * size
        #: Increases whenever the rank groups change. Cached facts about them are valid for one
        #: version.
        self.version = 0
        self._regions: dict[bytes, tuple[int, list[RankGroup]]] = {}

    def of(self, rank: int) -> RankGroup:
        """Return the rank group of a process."""
        return self._of[rank]

    def of_region(self, encoded: bytes) -> list[RankGroup]:
        """Return the rank groups of a region; groups that are only partly inside it are split."""
        version, found = self._regions.get(encoded, (-1, []))
        if version == self.version:
            return found
        ranks = Region.decode(encoded).ranks()
        self.split(dict.fromkeys(ranks, True))
        found = self.among(ranks)
        self._regions[encoded] = self.version, found
        return found

    def among(self, ranks: Iterable[int]) -> list[RankGroup]:
        """Return the rank groups of some processes."""
        return list({id(self._of[rank]): self._of[rank] for rank in ranks}.values())

    def split(self, marks: Mapping[int, Hashable]) -> None:
        """Split rank groups so that all ranks of a group have the same mark, or none.

        Args:
            marks: The marks, by rank.
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
        """Reset the clocks, and merge rank groups whose processes have the same memory in use."""
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
            made.hosts, made.syncs = dict(rank_group.hosts), dict(rank_group.syncs)
            made.device_streams = {
                key: device_stream.copy()
                for key, device_stream in rank_group.device_streams.items()
            }
            made.live, made.peak = dict(rank_group.live), dict(rank_group.peak)
            made.lineage = (*rank_group.lineage, (rank_group.number, self._count()))
            self.all.append(made)
            for rank in ranks:
                self._of[rank] = made
        rank_group.ranks = parts[0]
