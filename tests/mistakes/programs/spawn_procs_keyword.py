"""A dimension as a keyword argument, as in `slice`; works."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        return self.value + n


procs = this_host().spawn_procs(gpus=2)
workers = procs.spawn("workers", Worker, 1)
print(procs.extent, workers.add.call(1).get().values())
