"""A class that does not derive from Actor."""

from mesh_core import endpoint, this_host


class Worker:
    @endpoint
    def add(self, n: int) -> int:
        return n + 1


procs = this_host().spawn_procs({"gpus": 1})
procs.spawn("workers", Worker)
