"""Four ranks load a model; one of them exits."""

import os
import sys
from contextlib import suppress

from bench.agents.broken_program import broken_program
from mesh_core import Actor, ProcDied, current_rank, endpoint, this_host


class Worker(Actor):
    @endpoint
    def load(self) -> None:
        if current_rank().rank == 2:
            print("licence server not reachable", file=sys.stderr, flush=True)
            os._exit(3)


with broken_program():
    workers = this_host().spawn_procs({"n": 4}, name="models").spawn("workers", Worker)
    with suppress(ProcDied):
        workers.load.call().get()
