"""Four ranks work; the third call does not return."""

import os
import signal

from bench.agents.broken_program import broken_program
from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def work(self) -> None:
        """Return at once."""


with broken_program():
    workers = this_host().spawn_procs({"n": 4}, name="team").spawn("workers", Worker)
    os.kill(workers.slice(n=1).pid.call_one().get(), signal.SIGSTOP)
    workers.work.call()
