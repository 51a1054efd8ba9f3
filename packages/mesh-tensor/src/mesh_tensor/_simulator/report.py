"""The results of a simulation: total time, activity of the devices, and their memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesh_tensor._instructions.call_site import line_of

if TYPE_CHECKING:
    from mesh_tensor._simulator.cost_model import CostModel
    from mesh_tensor._simulator.event_log import EventLog, Sum
    from mesh_tensor._simulator.rank_groups import RankGroup
    from mesh_tensor._simulator.world import SimulatedWorld

__all__ = ["DeviceUse", "LineCost", "SimulationReport", "report_of"]

#: The maximum number of rows of each table that are printed.
_ROWS_MAX = 10


@dataclass(frozen=True)
class DeviceUse:
    """The activity of one device of several processes that do the same.

    Compute, communication, waiting, starved and idle times add up to the total time.

    Attributes:
        device: The type of device.
        stream: The number of the stream; 0 is the default stream.
        ranks: The processes.
        compute_s: The time it computes.
        communication_s: The time it sends and receives.
        waiting_s: The time it waits in a collective for other processes, or waits for another
            stream.
        starved_s: The time it has no work, because nothing has been issued to it yet.
        idle_s: The time between its end and the end of the simulation.
        live_bytes: The memory in use at the end.
        peak_bytes: The maximum memory in use.
        memory_bytes: The size of its memory.
    """

    device: str
    stream: int
    ranks: tuple[int, ...]
    compute_s: float
    communication_s: float
    waiting_s: float
    starved_s: float
    idle_s: float
    live_bytes: int
    peak_bytes: int
    memory_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the memory is sufficient."""
        return self.peak_bytes <= self.memory_bytes


@dataclass(frozen=True)
class LineCost:
    """The cost of one operation on one line of the program.

    Attributes:
        name: The name of the operation.
        file: The file that issues it.
        line: The line in the file; 0 if it is not known.
        count: The number of executions, over all processes.
        total_s: The total duration over all processes, in seconds.
    """

    name: str
    file: str
    line: int
    count: int
    total_s: float


@dataclass(frozen=True)
class SimulationReport:
    """The time and memory of a simulated program, or of a part of it.

    Attributes:
        total_s: The time until the last device has finished, in seconds.
        program_s: The time that the program needs to issue the operations, in seconds.
        processes: The number of processes.
        devices: The activity of the devices, with one entry for all processes that do the same.
        lines: The cost of the lines of the program, most expensive first.
    """

    total_s: float
    program_s: float
    processes: int
    devices: tuple[DeviceUse, ...]
    lines: tuple[LineCost, ...]

    def of(self, device: str) -> tuple[DeviceUse, ...]:
        """Return the entries of a type of device."""
        return tuple(one for one in self.devices if one.device == device)

    def peak_bytes(self, device: str = "cuda") -> int:
        """Return the maximum memory in use on any device of a type, in bytes."""
        return max((one.peak_bytes for one in self.of(device)), default=0)

    @property
    def fits(self) -> bool:
        """Whether the memory of all devices is sufficient."""
        return all(one.fits for one in self.devices)

    def __str__(self) -> str:
        rows = [
            f"{_seconds(self.total_s)} on {self.processes} processes, of which"
            f" {_seconds(self.program_s)} in the program",
            f"{'device':<8}{'ranks':>14}{'compute':>9}{'exchange':>9}{'waiting':>9}{'starved':>9}"
            f"{'idle':>9}{'peak':>12}",
        ]
        rows += [self._row(one) for one in self.devices[:_ROWS_MAX]]
        if len(self.devices) > _ROWS_MAX:
            rows.append(f"... and {len(self.devices) - _ROWS_MAX} more")
        total_s = sum(one.total_s for one in self.lines) or 1.0
        for one in self.lines[:_ROWS_MAX]:
            rows.append(
                f"{one.total_s / total_s:>6.1%}  {one.name}  {one.file.rpartition('/')[2]}:"
                f"{one.line}"
            )
        return "\n".join(rows)

    def _row(self, one: DeviceUse) -> str:
        parts = (one.compute_s, one.communication_s, one.waiting_s, one.starved_s, one.idle_s)
        shares = "".join(f"{part / (self.total_s or 1.0):>9.1%}" for part in parts)
        name = one.device + (f" {one.stream}" if one.stream else "")
        warning = "" if one.fits else "  does not fit"
        return (
            f"{name:<8}{_ranks(one.ranks):>14}{shares}"
            f"{one.peak_bytes / (1 << 30):>8.2f} GiB{warning}"
        )


def report_of(world: SimulatedWorld, program_s: float, events: EventLog) -> SimulationReport:
    """Summarize the events since the last reset."""
    rank_groups = world.rank_groups.all
    total_s = max([program_s, *(rank_group.end_s() for rank_group in rank_groups)])
    devices = [use for rank_group in rank_groups for use in _uses(rank_group, total_s, world.model)]
    sums = sorted(events.sums.values(), key=lambda one: -one.total_s)
    return SimulationReport(
        total_s,
        program_s,
        world.size,
        tuple(
            sorted(
                devices, key=lambda one: (one.device == "cpu", one.device, one.stream, one.ranks[0])
            )
        ),
        tuple(map(_line_cost, sums)),
    )


def _place(one: DeviceUse) -> tuple[bool, str, int, int]:
    return one.device == "cpu", one.device, one.stream, one.ranks[0]


def _uses(rank_group: RankGroup, total_s: float, model: CostModel) -> list[DeviceUse]:
    for device in rank_group.live:
        if not any(key[0] == device for key in rank_group.device_streams):
            rank_group.device_stream((device, 0))
    return [
        DeviceUse(
            device,
            stream,
            tuple(rank_group.ranks),
            device_stream.compute_s,
            device_stream.communication_s,
            device_stream.waiting_s,
            device_stream.starved_s,
            total_s - device_stream.clock_s,
            rank_group.live.get(device, 0),
            rank_group.peak.get(device, 0),
            model.devices[device].memory_bytes,
        )
        for (device, stream), device_stream in rank_group.device_streams.items()
    ]


def _line_cost(one: Sum) -> LineCost:
    file, line = "", 0
    if one.call_site:
        code, instruction = one.call_site[:2]
        file, line = code.co_filename, line_of(code, instruction)
    return LineCost(one.name, file, line, one.count, one.total_s)


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return str(ranks[0])
    step = ranks[1] - ranks[0]
    if ranks == tuple(range(ranks[0], ranks[-1] + 1, step)):
        return f"{ranks[0]}-{ranks[-1]}" + (f" by {step}" if step > 1 else "")
    return f"{len(ranks)} from {ranks[0]}"


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
