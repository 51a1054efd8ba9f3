"""An async endpoint blocks its event loop with `get`."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    async def add(self, n: int) -> int:
        return n + 1


class Caller(Actor):
    def __init__(self, workers: Worker) -> None:
        self.workers = workers

    @endpoint
    async def total(self) -> int:
        return sum(self.workers.add.call(1).get().values())


procs = this_host().spawn_procs({"gpus": 1})
workers = procs.spawn("workers", Worker)
caller = procs.spawn("caller", Caller, workers)
print(caller.total.call_one().get(timeout=20))
