"""Calls actors in two processes, kills one of them and replaces it."""

import os
import signal

from mesh_core import Actor, ProcDied, endpoint, this_host


class Worker(Actor):
    @endpoint
    def double(self, n: int) -> int:
        return 2 * n

    @endpoint
    def pid(self) -> int:
        return os.getpid()


procs = this_host().spawn_procs({"n": 2})
workers = procs.spawn("workers", Worker)
os.kill(workers[1].pid.call_one().get(), signal.SIGKILL)
try:
    workers.double.call(3).get()
except ProcDied as died:
    procs.replace(died.rank)
print(workers.double.call(4).get().values())

# prints:
#   [8, 8]
