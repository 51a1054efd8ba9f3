"""Work is spread over four ranks; three of them are idle."""

from bench.agents.stage import stage
from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def work(self, item: int) -> int:
        return item


with stage():
    workers = this_host().spawn_procs({"n": 4}, name="team").spawn("workers", Worker)
    for item in range(100):
        workers.slice(n=item % 2 * 2).work.call_one(item).get()
