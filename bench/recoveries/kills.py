"""The kills of a training, and what its journal says about the recoveries from them."""

from __future__ import annotations

import os
import random
import signal
import time
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
        step: The step in which the rank was killed.
        rank: The rank.
        seconds: From the kill to the end of this step on this rank.
        steps_repeated: The number of steps that the rank had finished and trained again.
    """

    step: int
    rank: int
    seconds: float
    steps_repeated: int


class Journal:
    """The journal of one rank: when it ended which step, and when it was killed.

    Args:
        folder: The folder of the journals of all ranks of a run.
        rank: The rank.
        seed: The seed of the kills.
    """

    def __init__(self, folder: str | Path, rank: int, seed: int) -> None:
        self._path = Path(folder) / f"rank{rank}"
        self._steps_to_kill = {step for step, one in planned_kills(seed).items() if one == rank}

    def begin(self, step: int) -> None:
        """Kill this process if that is planned for the step and has not happened yet."""
        if step in self._steps_to_kill and not any(
            one == ("kill", step) for one, _ in self.entries()
        ):
            self._append("kill", step)
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self, step: int) -> None:
        """Record the end of a step."""
        self._append("end", step)

    def entries(self) -> list[tuple[tuple[str, int], float]]:
        """Return what happened in which step, and the time in seconds, in order."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        words = [line.split() for line in lines]
        return [((what, int(step)), float(at)) for what, step, at in words]

    def recoveries(self) -> list[Recovery]:
        """Return the recoveries from the kills of this rank.

        Raises:
            ValueError: The training did not reach the step of a kill again.
        """
        rank = int(self._path.name.removeprefix("rank"))
        entries = self.entries()
        found = []
        for at, ((what, step), killed_at) in enumerate(entries):
            if what == "kill":
                later = entries[at + 1 :]
                ended_at = next((time for one, time in later if one == ("end", step)), None)
                if ended_at is None:
                    raise ValueError(f"rank {rank} did not reach step {step} after its kill")
                repeated = {s for (_, s), time in later if time < ended_at and s < step}
                found.append(Recovery(step, rank, ended_at - killed_at, len(repeated)))
        return found

    def _append(self, what: str, step: int) -> None:
        # The clock is that of the machine, not of a process.
        with self._path.open("a") as file:
            file.write(f"{what} {step} {time.monotonic()}\n")


def recoveries_of(folder: Path, seed: int) -> list[Recovery]:
    """Return the recoveries of all ranks of a run, by step.

    Raises:
        ValueError: A planned kill did not happen, or was not recovered from.
    """
    ranks = [Journal(folder, rank, seed) for rank in range(RANKS)]
    found = sorted((one for rank in ranks for one in rank.recoveries()), key=lambda one: one.step)
    if {one.step: one.rank for one in found} != planned_kills(seed):
        raise ValueError(f"{len(found)} of {KILLS} planned kills are in the journals")
    return found
