"""Gets two hosts from the simplest scheduler, uses them and releases them."""

from mesh_core import Actor, current_rank, endpoint
from mesh_jobs import ProcessJob


class Worker(Actor):
    @endpoint
    def rank(self) -> int:
        return current_rank().rank


job = ProcessJob({"workers": 2})
job.apply()
workers = job.state(timeout=60).workers.spawn_procs({"n": 1}).spawn("workers", Worker)
print(workers.rank.call().get().values())
job.kill()

# prints:
#   [0, 1]
