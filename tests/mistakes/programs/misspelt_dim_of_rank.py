"""A misspelt dimension of the own rank."""

from mesh_core import Actor, current_rank, endpoint, this_host


class Worker(Actor):
    @endpoint
    def place(self) -> int:
        return current_rank()["gpu"]


workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
workers.place.call_one().get()
