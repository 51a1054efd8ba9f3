"""Schedules: which of the events that can happen next does.

`PctOrder` is PCT, probabilistic concurrency testing [1], on chains of events as in [2]. Each run
finds a failure that needs few events in one order with a probability that is known and not small;
most races need two. An exhaustive search (DPOR) would have to execute every order that is not
equivalent to another one, which are too many for the thousands of messages of a case.

[1] Burckhardt, Kothari, Musuvathi, Nagarakatte: A Randomized Scheduler with Probabilistic
    Guarantees of Finding Bugs. ASPLOS 2010.
[2] Ozkan, Majumdar, Niksic, Tabaei Befrouei, Weissenbacher: Randomized Testing of Distributed
    Systems with Probabilistic Guarantees. OOPSLA 2018.
"""

from __future__ import annotations

import random
from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._schedules.events import Event, EventId

__all__ = ["FixedOrder", "Order", "PctOrder", "RecordedOrder", "SerialOrder"]

_DEPTH_MAX = 4


class Order(Protocol):
    """Selects the next event.

    Attributes:
        keeps_time: Whether timers fire when they did in the recorded run. Otherwise, they fire when
            no other event is possible.
        is_serial: Whether timers also fire before the next message from outside.
    """

    keeps_time: bool
    is_serial: bool

    def next(self, events: Sequence[Event]) -> Event:
        """Return one of the events; `events` is not empty."""
        ...


class RecordedOrder:
    """The order of the recorded run; events that did not happen there come last."""

    keeps_time = True
    is_serial = False

    def next(self, events: Sequence[Event]) -> Event:
        """Return the event that happened first."""
        return min(events, key=_recorded_time)


class SerialOrder:
    """Inputs one after another: everything that one of them causes happens before the next one."""

    keeps_time = False
    is_serial = True

    def next(self, events: Sequence[Event]) -> Event:
        """Return the event that an earlier one has caused, or the input that came first."""
        return min(events, key=lambda event: (event.input is not None, _recorded_time(event)))


class PctOrder:
    """A random order with few points at which priorities change.

    Args:
        seed: Equal seeds give equal orders.
        event_count: The approximate number of events of a run.
    """

    keeps_time = False
    is_serial = False

    def __init__(self, seed: int, event_count: int) -> None:
        self._random = random.Random(seed)
        depth = 1 + seed % _DEPTH_MAX
        self._changes = {self._random.randrange(max(event_count, 1)) for _ in range(depth - 1)}
        self._step = 0
        self._priorities: dict[int, float] = {}

    def next(self, events: Sequence[Event]) -> Event:
        """Return the event whose chain has the highest priority."""
        priorities = self._priorities
        for event in events:
            if event.chain not in priorities:
                priorities[event.chain] = self._random.random()
        if self._step in self._changes:
            lowered = max(events, key=lambda event: priorities[event.chain])
            # Below every other priority, including the priorities that were lowered before.
            priorities[lowered.chain] = -1.0 - self._step
        self._step += 1
        return max(events, key=lambda event: priorities[event.chain])


class FixedOrder:
    """A given order; events that it does not contain come last, in the recorded order.

    Args:
        identities: The events.
        keeps_time: See `Order`.
    """

    is_serial = False

    def __init__(self, identities: Sequence[EventId], *, keeps_time: bool) -> None:
        self.keeps_time = keeps_time
        self._places = {identity: place for place, identity in enumerate(identities)}

    def next(self, events: Sequence[Event]) -> Event:
        """Return the event that comes first."""
        last = len(self._places)
        return min(
            events,
            key=lambda event: (self._places.get(event.identity, last), _recorded_time(event)),
        )


def _recorded_time(event: Event) -> float:
    return float("inf") if event.time_ns is None else event.time_ns
