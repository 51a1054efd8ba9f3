"""An open file as an argument of `__init__`."""

from typing import IO

from mesh_core import Actor, this_host


class Worker(Actor):
    def __init__(self, log: IO[str]) -> None:
        self.log = log


procs = this_host().spawn_procs({"gpus": 1})
procs.spawn("workers", Worker, open("/dev/null", "a"))
