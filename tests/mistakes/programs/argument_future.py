"""A future as an argument, as in Ray."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        return self.value + n


workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker, 1)
one = workers.slice(gpus=0).add.call_one(1)
workers.add.call([one]).get()
