"""Ranks whose training steps take given times."""

from __future__ import annotations

from mesh_core import Actor, current_rank, endpoint
from mesh_telemetry._recording.recorder import active_recorder
from mesh_telemetry._steps.steps_file import Step, StepsFile

MS = 1_000_000
STEPS = 40
SIZE = 8
#: A rank that computes more than the others, and one that waits for its data.
SLOW_RANK, STARVED_RANK = 3, 6


class Trainer(Actor):
    """Writes steps of 10 ms: the others wait for the slow rank in collectives."""

    @endpoint
    def train(self) -> None:
        """Write the steps."""
        recorder = active_recorder()
        assert recorder is not None
        file = StepsFile(recorder.folder)
        rank = current_rank().rank
        compute = 8 if rank == SLOW_RANK else 5
        wait = 3 if rank == STARVED_RANK else 1
        for number in range(STEPS):
            began = number * 10 * MS
            rest = 10 - compute - wait
            file.add(Step(number, began, began + 10 * MS, wait * MS, rest * MS))
