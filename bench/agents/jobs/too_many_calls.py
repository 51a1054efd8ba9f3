"""A loader is fast, and the program spends its time on calls."""

from bench.agents.broken_program import broken_program
from mesh_core import Actor, endpoint, this_host


class Loader(Actor):
    @endpoint
    def length(self) -> int:
        return 1000

    @endpoint
    def item(self, at: int) -> int:
        return at

    @endpoint
    def items(self, first: int, count: int) -> list[int]:
        return list(range(first, first + count))


with broken_program():
    loader = this_host().spawn_procs(name="data").spawn("loader", Loader)
    for at in range(300):
        if at < loader.length.call_one().get():
            loader.item.call_one(at).get()
    loader.items.call_one(300, 700).get()
