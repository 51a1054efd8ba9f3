"""A lock in an argument."""

import threading

from mesh_core import Actor, endpoint, this_host


class Batch:
    def __init__(self) -> None:
        self.rows = [1, 2]
        self.lock = threading.Lock()


class Worker(Actor):
    @endpoint
    def train(self, batches: list[Batch]) -> int:
        return len(batches)


workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
workers.train.call([Batch()]).get()
