"""Actors that record collectives as the hooks of PyTorch do, without PyTorch."""

from __future__ import annotations

import os
import sys

from mesh_core import Actor, current_rank, endpoint
from mesh_telemetry._collectives.collectives_file import CollectivesFile, ProcessGroup
from mesh_telemetry._recording.recorder import active_recorder

SIZE = 3
WORLD = "node:1"


class Trainer(Actor):
    """A rank of a group; it has a separate fifo, which simulates the event that it waits for.

    Args:
        folder: The folder with the fifos.
    """

    def __init__(self, folder: str) -> None:
        recorder = active_recorder()
        assert recorder is not None, "the process is recorded"
        self.rank = current_rank().rank
        self.fifo = f"{folder}/{self.rank}"
        self.file = CollectivesFile(recorder.folder)
        ranks = tuple(range(SIZE))
        self.file.add_group(ProcessGroup(0, "0", WORLD, ranks, self.rank, "gloo"))

    @endpoint
    def train(self, steps: int, culprit: int) -> None:
        for step in range(steps):
            self.file.leave(self.enter(step))
        if self.rank == culprit:
            self.load()
            self.file.leave(self.enter(steps))
        else:
            serial = self.enter(steps)
            with open(self.fifo) as fifo:
                fifo.read()
            self.file.leave(serial)

    def enter(self, step: int) -> int:
        caller = (__file__, "Trainer.train", sys._getframe(1).f_lineno)
        return self.file.enter(0, "all_reduce", -1, step, 16, "float32[4]", caller, is_async=False)

    def load(self) -> None:
        with open(self.fifo) as fifo:
            fifo.read()


def make_fifos(folder: str) -> None:
    """Create the fifos."""
    for rank in range(SIZE):
        os.mkfifo(f"{folder}/{rank}")


def release(folder: str) -> None:
    """Let all ranks continue."""
    for rank in range(SIZE):
        with open(f"{folder}/{rank}", "w"):
            pass
