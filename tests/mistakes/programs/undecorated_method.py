"""A method without `@endpoint`."""

from mesh_core import Actor, this_host


class Worker(Actor):
    def add(self, n: int) -> int:
        return n + 1


workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
workers.add.call(1).get()
