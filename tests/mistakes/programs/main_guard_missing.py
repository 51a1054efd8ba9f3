"""No `if __name__ == "__main__"`, which multiprocessing requires; works."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, n: int) -> int:
        return self.value + n


def double(n: int) -> int:
    return 2 * n


procs = this_host().spawn_procs({"gpus": 1})
workers = procs.spawn("workers", Worker, double(1))
print(workers.add.call(1).get().values())
