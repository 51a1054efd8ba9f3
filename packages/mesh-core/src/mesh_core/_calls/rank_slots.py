"""Which rank of a mesh gets the next of many calls: the one with the fewest calls in progress."""

from __future__ import annotations

import time
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._calls.future import Future
    from mesh_core._meshes.actor_mesh import ActorMesh

__all__ = ["RankSlots"]

# A rank whose process has died is probed after this time, then less and less often: its restart
# takes about 0.1 s.
_PROBE_S, _PROBE_MAX_S = 0.05, 5.0
# How long a mesh without a live rank is waited for.
_RECOVERY_S = 2.0


class _LostRank:
    """A rank whose process has died, and which may be restarted."""

    def __init__(self) -> None:
        self.since = self.probed_at = time.monotonic()
        self.pause_s = _PROBE_S
        self.probe: Future[Any] | None = None


class RankSlots:
    """The load of each rank, up to a limit.

    Args:
        mesh: The actors.
        calls_max: The maximum number of calls in progress per rank.
    """

    def __init__(self, mesh: ActorMesh[Any], calls_max: int) -> None:
        self._mesh = mesh
        self._calls_max = calls_max
        self._loads = [0] * len(mesh)
        # The live ranks that have a free slot, by load; each dictionary is a queue.
        self._by_load: list[dict[int, None]] = [{} for _ in range(calls_max)]
        self._by_load[0].update(dict.fromkeys(range(len(mesh))))
        self._lost: dict[int, _LostRank] = {}

    def take(self) -> int | None:
        """Return the live rank with the lowest load, which increases, or None if all are full."""
        for ranks in self._by_load:
            if ranks:
                rank = next(iter(ranks))
                self._move(rank, 1)
                return rank
        return None

    def release(self, rank: int) -> None:
        """Record the end of a call."""
        self._move(rank, -1)

    def lose(self, rank: int) -> None:
        """Record that the process of a rank has died; it gets no call until it replies again."""
        self._lost.setdefault(rank, _LostRank())
        self._move(rank, 0)

    def recover(self) -> float | None:
        """Take back lost ranks that have been restarted.

        Returns:
            How long to wait for a reply before the next call of this method, in seconds; None if no
            rank is lost.
        """
        now = time.monotonic()
        for rank, lost in list(self._lost.items()):
            if lost.probe is None:
                if now - lost.probed_at >= lost.pause_s:
                    lost.probe = self._mesh._with_region(
                        self._mesh._region.member(rank)
                    ).initialized
            elif lost.probe.done():
                if lost.probe.exception() is None:
                    del self._lost[rank]
                    self._move(rank, 0)
                else:
                    lost.probe, lost.probed_at = None, now
                    lost.pause_s = min(2 * lost.pause_s, _PROBE_MAX_S)
        return _PROBE_S if self._lost else None

    def _move(self, rank: int, change: int) -> None:
        """Change the load of a rank, and offer the rank to `take` if it has a free slot."""
        load = self._loads[rank]
        if load < self._calls_max:
            self._by_load[load].pop(rank, None)
        load = self._loads[rank] = load + change
        if load < self._calls_max and rank not in self._lost:
            self._by_load[load][rank] = None

    @property
    def is_dead(self) -> bool:
        """Whether no rank is left, and none has been restarted for a while."""
        if len(self._lost) < len(self._loads):
            return False
        newest = max(lost.since for lost in self._lost.values())
        return time.monotonic() - newest > _RECOVERY_S
