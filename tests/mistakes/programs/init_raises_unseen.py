"""An exception in `__init__` of actors that the program never calls."""

import threading

from mesh_core import Actor, this_host


class Worker(Actor):
    def __init__(self, path: str) -> None:
        self.lines = open(path).read()


procs = this_host().spawn_procs({"gpus": 1})
workers = procs.spawn("workers", Worker, "/no/such/file")
threading.Event().wait(30)
