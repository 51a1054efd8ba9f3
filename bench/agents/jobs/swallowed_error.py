"""All steps succeed, but the file does not exist."""

from bench.agents.broken_program import broken_program
from mesh_core import Actor, current_rank, endpoint, this_host


class Saver(Actor):
    @endpoint
    def save(self, step: int) -> None:
        if step == 7 and current_rank().rank == 1:
            raise OSError("no space left on device")

    @endpoint
    def flush(self) -> None:
        """Do nothing."""


with broken_program():
    savers = this_host().spawn_procs({"n": 3}, name="saving").spawn("savers", Saver)
    for step in range(10):
        for future in savers.save.stream(step):
            future.exception()
    savers.flush.call().get()
