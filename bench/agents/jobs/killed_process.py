"""Four ranks work; one of them has died."""

import os
import signal

from bench.agents.broken_program import broken_program
from mesh_core import Actor, ProcDied, endpoint, this_host


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


with broken_program():
    workers = this_host().spawn_procs({"n": 4}, name="team").spawn("workers", Worker)
    os.kill(workers.slice(n=3).pid.call_one().get(), signal.SIGKILL)
    try:
        workers.pid.call().get()
    except ProcDied:
        print("a worker died")
