"""Indexing like an array of numpy."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        return self.value + n


workers = this_host().spawn_procs({"hosts": 1, "gpus": 2}).spawn("workers", Worker, 1)
workers[0, 1].add.call_one(1).get()
