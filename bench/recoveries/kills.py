"""The kills of a training, and the recoveries from them according to its journal."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RANKS = 4
KILLS = 5
STEPS_PER_KILL = 50
STEPS = KILLS * STEPS_PER_KILL
#: Steps between two checkpoints, under the systems that write them.
SAVE_EVERY = 25


def planned_kills(seed: int) -> dict[int, int]:
    """Return the rank to kill by the step that it has just begun."""
    choice = random.Random(seed)
    middles = range(STEPS_PER_KILL // 2 + SAVE_EVERY // 2, STEPS, STEPS_PER_KILL)
    return {
        middle + choice.randrange(-SAVE_EVERY // 2, SAVE_EVERY // 2): choice.randrange(RANKS)
        for middle in middles
    }


@dataclass(frozen=True)
class Recovery:
    """The recovery from one kill.

    Attributes:
        step: The step at whose beginning the rank was to be killed.
        rank: The rank.
        others_s: From the kill to the end of the next step on all other ranks, in seconds.
        seconds: From the kill to the end of the next new step on the rank itself.
        steps_repeated: The number of steps that the rank had finished and trained again.
        steps_missed: The number of steps that the other ranks trained without the rank.
    """

    step: int
    rank: int
    others_s: float
    seconds: float
    steps_repeated: int
    steps_missed: int


class Journal:
    """The journal of one rank: the times at which it ended each step, and at which it was killed.

    Args:
        folder: The folder of the journals of all ranks of a run.
        rank: The rank.
        seed: The seed of the kills.
    """

    def __init__(self, folder: str | Path, rank: int, seed: int) -> None:
        self._path = Path(folder) / f"rank{rank}"
        self._steps_to_kill = {step for step, one in planned_kills(seed).items() if one == rank}

    def begin(self, step: int) -> None:
        """Kill this process if that is planned for the step, or for one that it has missed."""
        killed = {one for (what, one), _ in self.entries() if what == "kill"}
        for due in sorted(self._steps_to_kill - killed):
            if due <= step:
                self._append("kill", due)
                os.kill(os.getpid(), signal.SIGKILL)

    def end(self, step: int) -> None:
        """Record the end of a step."""
        self._append("end", step)

    def entries(self) -> list[tuple[tuple[str, int], float]]:
        """Return each event with its step and its time in seconds, in order."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        words = [line.split() for line in lines]
        return [((what, int(step)), float(at)) for what, step, at in words]

    def recoveries(self, others: Sequence[Journal]) -> list[Recovery]:
        """Return the recoveries from the kills of this rank.

        Args:
            others: The journals of all other ranks.

        Raises:
            ValueError: A rank trained no new step after a kill.
        """
        rank = int(self._path.name.removeprefix("rank"))
        entries = self.entries()
        found = []
        for at, ((what, step), killed_at) in enumerate(entries):
            if what != "kill":
                continue
            last = max((one for (_, one), _ in entries[:at]), default=-1)
            trained, ended_at = self.next_end(killed_at, last)
            others_s = max(one.next_end(killed_at, -1)[1] for one in others) - killed_at
            repeated = {one for (_, one), end_at in entries[at + 1 :] if end_at < ended_at}
            missed = trained - last - 1
            seconds = ended_at - killed_at
            found.append(Recovery(step, rank, others_s, seconds, len(repeated), missed))
        return found

    def next_end(self, since: float, last: int) -> tuple[int, float]:
        """Return the first step later than `last` that ended after a time, and the time of its end.

        Raises:
            ValueError: No such step exists.
        """
        for (what, step), at in self.entries():
            if what == "end" and at > since and step > last:
                return step, at
        raise ValueError(f"{self._path.name} trained no new step after a kill")

    def _append(self, what: str, step: int) -> None:
        # The clock belongs to the machine, not to a process.
        with self._path.open("a") as file:
            file.write(f"{what} {step} {time.monotonic()}\n")


def recoveries_of(folder: Path, seed: int) -> list[Recovery]:
    """Return the recoveries of all ranks of a run, by step.

    Raises:
        ValueError: A planned kill did not happen, or was not recovered from.
    """
    ranks = [Journal(folder, rank, seed) for rank in range(RANKS)]
    found = [
        one
        for rank in ranks
        for one in rank.recoveries([other for other in ranks if other is not rank])
    ]
    found.sort(key=lambda one: one.step)
    if {one.step: one.rank for one in found} != planned_kills(seed):
        raise ValueError(f"{len(found)} of {KILLS} planned kills are in the journals")
    return found
