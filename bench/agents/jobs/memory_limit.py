"""Loaders read files of several sizes; one loader has died."""

from contextlib import suppress

from bench.agents.broken_program import broken_program
from mesh_core import Actor, ProcDied, current_rank, endpoint, this_host


class Loader(Actor):
    @endpoint
    def load(self) -> int:
        mib = 2000 if current_rank().rank == 1 else 1
        return len(b"x" * (mib << 20))


with broken_program():
    procs = this_host().spawn_procs({"n": 3}, memory_limit="300MiB", name="loading")
    with suppress(ProcDied):
        procs.spawn("loaders", Loader).load.call().get()
