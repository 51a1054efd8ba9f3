"""Events are logged by three actors; one of them falls behind."""

import threading

from bench.agents.broken_program import broken_program
from mesh_core import Actor, current_rank, endpoint, this_host


class Log(Actor):
    @endpoint
    def write(self, event: int) -> None:
        if current_rank().rank == 1:
            threading.Event().wait(0.5)


with broken_program():
    logs = this_host().spawn_procs({"n": 3}, name="events").spawn("logs", Log)
    for event in range(100):
        logs.write.broadcast(event)
