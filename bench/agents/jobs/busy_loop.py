"""Four ranks share a search; one of them never reports."""

from bench.agents.broken_program import broken_program
from mesh_core import Actor, current_rank, endpoint, this_host


class Searcher(Actor):
    @endpoint
    def search(self, start: int) -> int:
        return self.halve(start + current_rank().rank)

    def halve(self, n: int) -> int:
        while n != 4:
            n = n // 2 if n > 7 else 4 if n < 7 else n
        return n


with broken_program():
    searchers = this_host().spawn_procs({"n": 4}, name="search").spawn("searchers", Searcher)
    searchers.search.call(4)
