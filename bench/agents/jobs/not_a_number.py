"""The loss of the run is NaN; some rank was the first."""

import math

from bench.agents.broken_program import broken_program
from mesh_core import Actor, current_rank, endpoint, get_meter, this_host


class Trainer(Actor):
    def __init__(self) -> None:
        self.loss = get_meter().create_gauge("loss")

    @endpoint
    def step(self, number: int) -> None:
        is_broken = number >= 8 or (number >= 6 and current_rank().rank == 3)
        self.loss.set(math.nan if is_broken else 1 / (number + 1), {"step": number})


with broken_program():
    trainers = this_host().spawn_procs({"gpus": 4}, name="train").spawn("trainers", Trainer)
    for number in range(10):
        trainers.step.call(number).get()
