"""Work is spread over four ranks; three of them are idle."""

from bench.agents.broken_program import broken_program
from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def work(self, item: int) -> int:
        return item


with broken_program():
    workers = this_host().spawn_procs({"n": 4}, name="team").spawn("workers", Worker)
    for item in range(100):
        workers.slice(n=item % 2 * 2).work.call_one(item).get()
