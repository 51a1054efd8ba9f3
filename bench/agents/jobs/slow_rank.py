"""Four ranks take steps together; the steps are slow."""

import time

from bench.agents.broken_program import broken_program
from mesh_core import Actor, current_rank, endpoint, span, this_host


class Trainer(Actor):
    @endpoint
    def step(self) -> None:
        with span("step"):
            time.sleep(0.05 if current_rank().rank == 2 else 0.005)


with broken_program():
    trainers = this_host().spawn_procs({"gpus": 4}, name="train").spawn("trainers", Trainer)
    for _ in range(10):
        trainers.step.call().get()
