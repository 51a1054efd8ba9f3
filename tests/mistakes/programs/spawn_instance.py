"""An instance instead of the class."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        return self.value + n


procs = this_host().spawn_procs({"gpus": 1})
procs.spawn("workers", Worker(1))
