"""An exception in `__init__`, received by a call."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    def __init__(self, path: str) -> None:
        self.lines = open(path).read()

    @endpoint
    def count(self) -> int:
        return len(self.lines)


procs = this_host().spawn_procs({"gpus": 1})
workers = procs.spawn("workers", Worker, "/no/such/file")
print(workers.count.call().get().values())
