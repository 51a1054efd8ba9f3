"""The progress of all ranks: which steps have ended, and whether the ranks hang."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mesh_core import wait

if TYPE_CHECKING:
    from mesh_core import Future
    from mesh_tensor._training.members import Members
    from mesh_tensor._training.rank_actors import Progress

__all__ = ["POLL_S", "ProgressWatch"]

#: How often the progress is requested, in seconds.
POLL_S = 0.1
# Ranks are considered to hang if no step ends for this many times the longest step so far, but at
# least for this many seconds.
_STALL_STEPS, _STALL_S = 20, 5.0
# The first step may compile, load data and so on.
_FIRST_STALL_S = 120.0


class ProgressWatch:
    """Collects the progress of the ranks while they train.

    Args:
        members: The members of the training.
        stall_timeout_s: The maximum time without the end of a step, in seconds. Default: it depends
            on the longest step so far.

    Attributes:
        losses: The losses that rank 0 has returned, by step.
        steps_done: The number of steps that some rank has finished.
        longest_step_s: The duration of the longest step, in seconds.
    """

    def __init__(self, members: Members, stall_timeout_s: float | None) -> None:
        self.losses: dict[int, float] = {}
        self.steps_done: int = 0
        self.longest_step_s: float = 0.0
        self._members = members
        self._stall_timeout_s = stall_timeout_s
        self._losses_received = 0
        self._began = time.monotonic()
        # How long each rank has waited for a processor: at the last end of a step, and now.
        self._cpu_waits_before: dict[int, float] = {}
        self._cpu_waits: dict[int, float] = {}

    def request(self) -> dict[int, Future[Progress]]:
        """Request the progress of each rank."""
        return {
            rank: member.monitor.progress.call_one(self._losses_received)
            for rank, member in enumerate(self._members)
        }

    def poll(self) -> None:
        """Collect the progress of the ranks that reply."""
        replies = self.request()
        wait(replies.values(), timeout=POLL_S)
        for rank, reply in replies.items():
            if not reply.done() or reply.exception() is not None:
                continue
            progress = reply.get()
            if rank == 0 and progress.losses:
                self.losses.update(progress.losses)
                self._losses_received = max(self._losses_received, progress.losses[-1][0] + 1)
            self._cpu_waits[rank] = progress.cpu_wait_s
            if progress.step > self.steps_done:
                self.steps_done = progress.step
                self.start_waiting()
            self.longest_step_s = max(self.longest_step_s, progress.longest_step_s)

    def start_waiting(self) -> None:
        """Measure the time without the end of a step from now on."""
        self._began = time.monotonic()
        self._cpu_waits_before = dict(self._cpu_waits)

    def ranks_changed(self) -> None:
        """Discard the values of individual ranks."""
        self._cpu_waits.clear()

    def waited_s(self) -> float:
        """Return how long no step has ended, not counting waits of a rank for a processor.

        On a busy machine, a step may take many times longer than otherwise.
        """
        waits = (
            wait_s - self._cpu_waits_before.get(rank, wait_s)
            for rank, wait_s in self._cpu_waits.items()
        )
        return time.monotonic() - self._began - max(waits, default=0.0)

    def has_stalled(self) -> bool:
        """Return whether the ranks hang."""
        limit_s = self._stall_timeout_s
        if limit_s is None:
            usual_s = max(_STALL_STEPS * self.longest_step_s, _STALL_S)
            limit_s = usual_s if self.longest_step_s else _FIRST_STALL_S
        return self.waited_s() >= limit_s
