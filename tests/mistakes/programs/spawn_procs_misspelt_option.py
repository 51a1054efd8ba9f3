"""A misspelt option of `spawn_procs`."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        return self.value + n


def set_up() -> None:
    print("ready")


this_host().spawn_procs({"gpus": 1}, bootstap=set_up)
