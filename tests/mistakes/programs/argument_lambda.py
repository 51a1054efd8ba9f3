"""A lambda as an argument; works."""

from collections.abc import Callable

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def apply(self, function: Callable[[int], int]) -> int:
        return function(20)


workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
print(workers.apply.call(lambda n: 2 * n + 2).get().values())
