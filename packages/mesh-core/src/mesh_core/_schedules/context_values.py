"""Values that actors of a run read from their context: time, environment, random seeds."""

from __future__ import annotations

import random
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._schedules.actor import RunningActor
    from mesh_core._schedules.world import World

__all__ = ["ContextValues"]


class ContextValues:
    """Reads of an actor from its context, which return the recorded values if they exist."""

    def __init__(self, world: World, actor: RunningActor) -> None:
        self._world = world
        self._actor = actor
        self._reads = actor.described.record.reads()
        self._random = random.Random(actor.name)

    def read(self, number: int, source: str, key: str, produce: Callable[[], Any]) -> Any:
        """Return the value that the same message read, or else a value for this run."""
        reads = self._reads.get(number)
        if (
            number
            and reads
            and (reads[0].fields["source"], reads[0].fields["key"]) == (source, key)
        ):
            return reads.popleft().fields["value"]
        if source == "time":
            return self._actor.described.created_ns / 1e9 + self._world.now_s
        if source == "random":
            return self._random.getrandbits(63)
        return produce()
