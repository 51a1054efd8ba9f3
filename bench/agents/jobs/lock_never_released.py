"""Counts on four ranks; the count does not arrive."""

import threading

from bench.agents.broken_program import broken_program
from mesh_core import Actor, current_rank, endpoint, this_host


class Counter(Actor):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0

    @endpoint
    def add(self, n: int) -> int:
        with self.lock:
            self.count += n
            if current_rank().rank == 2:
                self.save()
        return self.count

    def save(self) -> None:
        with self.lock:
            pass


with broken_program():
    counters = this_host().spawn_procs({"n": 4}, name="count").spawn("counters", Counter)
    counters.add.call(1)
