"""Actors are spawned on hosts instead of processes."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        return self.value + n


this_host().spawn("workers", Worker, 1)
