"""`remote` of the class, as in Ray."""

from mesh_core import Actor, endpoint


class Worker(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        return self.value + n


Worker.remote(1)
