"""The events of simulated processes: totals by line, and a limited number of single events."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor._instructions.call_site import CallSite
    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._simulator.rank_groups import RankGroup

__all__ = ["Event", "EventLog", "Sum"]


class Event(NamedTuple):
    """An event of a rank group.

    Attributes:
        rank_group: The number of the rank group.
        device_stream: The device type and the number of its stream.
        start_s: The start time, in seconds.
        cost_s: The duration, in seconds.
        name: The name of the operation.
        call_site: The call site of the operation.
        is_exchange: Whether other processes took part.
        live_bytes: The memory in use on the device at that time.
    """

    rank_group: int
    device_stream: tuple[str, int]
    start_s: float
    cost_s: float
    name: str
    call_site: CallSite
    is_exchange: bool
    live_bytes: int


class Sum:
    """The total cost of one operation on one line of the program.

    Attributes:
        name: The name of the operation.
        call_site: The call site.
        count: The number of executions, over all processes.
        total_s: The total duration over all processes, in seconds.
    """

    __slots__ = ("call_site", "count", "name", "total_s")

    def __init__(self, name: str, call_site: CallSite) -> None:
        self.name = name
        self.call_site = call_site
        self.count = 0
        self.total_s = 0.0


class EventLog:
    """The events since the last `clear`.

    Args:
        events_max: The maximum number of events that are kept. The totals include all events.
    """

    def __init__(self, events_max: int) -> None:
        self.events: list[Event] = []
        #: The number of events that were not kept.
        self.left_out = 0
        self.sums: dict[tuple[str, int, int], Sum] = {}
        #: Returns the call site of the current operation.
        self.call_site: Callable[[], CallSite] = tuple
        self._events_max = events_max

    @property
    def count(self) -> int:
        """The number of events."""
        return len(self.events) + self.left_out

    def record(
        self,
        rank_group: RankGroup,
        device_stream: tuple[str, int],
        start_s: float,
        cost_s: float,
        compiled_op: CompiledOp,
        is_exchange: bool,
    ) -> None:
        """Record an event."""
        call_site = self.call_site()
        code, instruction = call_site[:2] or (None, 0)
        key = (compiled_op.name, id(code), instruction)
        found = self.sums.get(key)
        if found is None:
            found = self.sums[key] = Sum(compiled_op.name, call_site)
        found.count += len(rank_group.ranks)
        found.total_s += cost_s * len(rank_group.ranks)
        if len(self.events) < self._events_max:
            live = rank_group.live.get(device_stream[0], 0)
            event = Event(
                rank_group.number,
                device_stream,
                start_s,
                cost_s,
                compiled_op.name,
                call_site,
                is_exchange,
                live,
            )
            self.events.append(event)
        else:
            self.left_out += 1

    def clear(self) -> None:
        """Discard all events."""
        self.events = []
        self.sums = {}
        self.left_out = 0
