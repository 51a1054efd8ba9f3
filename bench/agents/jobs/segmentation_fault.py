"""Four ranks call a library; one of them crashes."""

import ctypes
from contextlib import suppress

from bench.agents.broken_program import broken_program
from mesh_core import Actor, ProcDied, current_rank, endpoint, this_host


class Worker(Actor):
    @endpoint
    def call_library(self) -> bytes:
        return ctypes.string_at(0) if current_rank().rank == 1 else b""


with broken_program():
    workers = this_host().spawn_procs({"n": 4}, name="native").spawn("workers", Worker)
    with suppress(ProcDied):
        workers.call_library.call().get()
