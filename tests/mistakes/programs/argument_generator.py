"""A generator as an argument."""

from collections.abc import Iterable

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def total(self, numbers: Iterable[int]) -> int:
        return sum(numbers)


workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
workers.total.call(n * n for n in range(10)).get()
