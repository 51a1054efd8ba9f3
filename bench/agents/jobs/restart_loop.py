"""A worker of four is slow: it starts again and again."""

import os
from contextlib import suppress

from bench.agents.broken_program import broken_program
from mesh_core import Actor, RestartPolicy, SupervisionError, current_rank, endpoint, this_host


class Worker(Actor):
    @endpoint
    def work(self) -> int:
        if current_rank().rank == 3:
            os._exit(1)
        return os.getpid()


with broken_program():
    procs = this_host().spawn_procs({"n": 4}, name="team")
    policy = RestartPolicy("permanent", intensity_max=20, period_s=60)
    workers = procs.spawn("workers", Worker, restart=policy)
    died = 0
    while died < 4:
        try:
            workers.work.call().get()
        except SupervisionError as error:
            # While the worker restarts, calls to it fail as well.
            died += "exit" in str(error)
            with suppress(SupervisionError):
                workers.slice(n=0).work.call_one().get()
