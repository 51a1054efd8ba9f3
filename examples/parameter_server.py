"""A parameter server that applies each update exactly once, whichever processes die.

The program sends batches to workers, and their updates to the server, which may both lose their
processes at any time. Mesh restarts them at the same rank. A worker has no state, so its batch is
sent again. The server loses its parameters: the program keeps the last state that the server has
returned, and the server refuses updates for any other version.

`tests/examples/test_parameter_server.py` runs `train` in a simulated cluster, under the faults of
500 seeds.
"""

import os
import signal
import time
from collections import deque

from mesh_core import (
    Actor,
    HostMesh,
    RestartPolicy,
    SupervisionError,
    endpoint,
    this_host,
    wait,
)

SIZE = 3
RESTARTS = RestartPolicy("permanent", intensity_max=100)

State = tuple[int, list[float]]
EMPTY: State = 0, [0.0] * SIZE


class WrongVersion(Exception):
    """The server has lost its state, or the program knows an old one."""


class Server(Actor):
    """Parameters and their version, which is the number of updates."""

    def __init__(self) -> None:
        self.version, self.parameters = EMPTY

    @endpoint
    def restore(self, state: State) -> None:
        self.version, self.parameters = state

    @endpoint
    def apply(self, version: int, update: list[float]) -> State:
        if version != self.version:
            raise WrongVersion(f"{version} instead of {self.version}")
        self.parameters = [old + new for old, new in zip(self.parameters, update, strict=True)]
        self.version += 1
        return self.version, self.parameters


class Worker(Actor):
    """Computes the update of a batch."""

    @endpoint
    def compute(self, batch: int) -> list[float]:
        return [float(batch) if index == batch % SIZE else 0.0 for index in range(SIZE)]

    @endpoint
    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def train(hosts: HostMesh, batches: int, workers_per_host: int = 2) -> list[float]:
    """Apply the update of every batch once; return the parameters."""
    workers = hosts.spawn_procs({"workers": workers_per_host}).flatten("worker")
    computing = workers.spawn("workers", Worker, restart=RESTARTS)
    server = this_host().spawn_procs().spawn("server", Server, restart=RESTARTS)
    state = EMPTY
    todo, idle = deque(range(batches)), deque(range(len(workers)))
    running = {}
    while state[0] < batches:
        while todo and idle:
            rank, batch = idle.popleft(), todo.popleft()
            running[computing.slice(worker=rank).compute.call_one(batch)] = rank, batch
        (done,) = wait(running, first=1).done
        rank, batch = running.pop(done)
        idle.append(rank)
        try:
            state = server.apply.call_one(state[0], done.get()).get()
        except WrongVersion:
            todo.append(batch)
            restore(server, state)
        except SupervisionError:
            # A process has died, of the worker or of the server. Its successor starts soon.
            todo.append(batch)
            time.sleep(0.01)
    return state[1]


def restore(server: Server, state: State) -> None:
    """Give a restarted server the last state; its process may die again."""
    try:
        server.restore.call_one(state).get()
    except SupervisionError:
        time.sleep(0.01)


def expected(batches: int) -> list[float]:
    """Return the parameters that each batch has changed exactly once."""
    return [float(sum(range(index, batches, SIZE))) for index in range(SIZE)]


if __name__ == "__main__":
    print(train(this_host(), 30))
    print(expected(30))

# prints:
#   [135.0, 145.0, 155.0]
#   [135.0, 145.0, 155.0]
