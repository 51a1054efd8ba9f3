"""The free memory of the machine decreases; one of five processes leaks it."""

from bench.agents.broken_program import broken_program
from mesh_core import Actor, current_rank, endpoint, this_host


class Worker(Actor):
    def __init__(self) -> None:
        self.kept: list[bytes] = []

    @endpoint
    def work(self) -> None:
        batch = b"x" * (10 << 20)
        if current_rank().rank == 4:
            self.kept.append(batch)


with broken_program():
    workers = this_host().spawn_procs({"n": 5}, name="team").spawn("workers", Worker)
    for _ in range(30):
        workers.work.call().get()
