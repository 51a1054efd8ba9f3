"""An endpoint without `self`."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def add(n: int) -> int:
        return n + 1


workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
workers.add.call(1).get()
