"""What simulated processes have done, kept up to a bound: sums by line, and each one for traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor._engine.call_site import Place
    from mesh_tensor._engine.plan import Plan
    from mesh_tensor._simulator.rank_groups import RankGroup

__all__ = ["Event", "EventLog", "Sum"]


class Event(NamedTuple):
    """Something that a rank group has done.

    Attributes:
        rank_group: Which one.
        lane: On which of its devices.
        start_s: When it began.
        cost_s: How long it took.
        name: What it was.
        place: Where the program asked for it.
        is_exchange: Whether others took part.
        live_bytes: What was in the memory of the device then.
    """

    rank_group: int
    lane: tuple[str, int]
    start_s: float
    cost_s: float
    name: str
    place: Place
    is_exchange: bool
    live_bytes: int


class Sum:
    """What one line of the program has cost.

    Attributes:
        name: The operation.
        place: The line.
        count: How often, over all processes.
        total_s: How long altogether, over all processes.
    """

    __slots__ = ("count", "name", "place", "total_s")

    def __init__(self, name: str, place: Place) -> None:
        self.name = name
        self.place = place
        self.count = 0
        self.total_s = 0.0


class EventLog:
    """What was done since the last `clear`.

    Args:
        events_max: So many are kept one by one; the sums are of all.
    """

    def __init__(self, events_max: int) -> None:
        self.events: list[Event] = []
        #: How many were not kept.
        self.left_out = 0
        self.sums: dict[tuple[str, int, int], Sum] = {}
        #: Says where the program asked for the operation that is done now.
        self.place: Callable[[], Place] = tuple
        self._events_max = events_max

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self.events) + self.left_out

    def note(
        self,
        rank_group: RankGroup,
        lane: tuple[str, int],
        start_s: float,
        cost_s: float,
        plan: Plan,
        is_exchange: bool,
    ) -> None:
        """Takes down what was done."""
        place = self.place()
        code, instruction = place[:2] or (None, 0)
        key = (plan.name, id(code), instruction)
        found = self.sums.get(key)
        if found is None:
            found = self.sums[key] = Sum(plan.name, place)
        found.count += len(rank_group.ranks)
        found.total_s += cost_s * len(rank_group.ranks)
        if len(self.events) < self._events_max:
            live = rank_group.live.get(lane[0], 0)
            event = Event(
                rank_group.number, lane, start_s, cost_s, plan.name, place, is_exchange, live
            )
            self.events.append(event)
        else:
            self.left_out += 1

    def clear(self) -> None:
        """Forgets what was done."""
        self.events = []
        self.sums = {}
        self.left_out = 0
