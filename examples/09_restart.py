"""Restarts what fails, before anybody has to hear of it.

`spawn(..., restart=...)` takes the words of Erlang/OTP: `permanent`, `transient`, `temporary`.
Within the limits of a `RestartPolicy`, a failed actor or a dead process is started again in its
place, with the arguments that it was spawned with; handles stay valid. One failure more goes to the
owner, which here is the program.
"""

import os
import threading
import time

import mesh_core
from mesh_core import (
    Actor,
    MeshFailure,
    ProcDied,
    RestartPolicy,
    SupervisionError,
    endpoint,
    this_host,
)


class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.count = start

    @endpoint
    def add(self, n: int) -> int:
        self.count += n
        return self.count

    @endpoint
    def exit(self, status: int) -> None:
        os._exit(status)

    @endpoint
    def fail(self) -> None:
        raise ValueError("a bad day")


def counts() -> list[int]:
    """The counts of all ranks, asked again while one of them is being restarted."""
    while True:
        try:
            return list(counters.add.call(0).get().values())
        except SupervisionError:
            time.sleep(0.01)


def escalated(failure: MeshFailure) -> None:
    print(f"told the program: {failure.why}, {type(failure.error.__cause__).__name__}")
    told.set()


told = threading.Event()
mesh_core.unhandled_fault_hook = escalated
policy = RestartPolicy("permanent", scope="one_for_one", intensity_max=2, period_s=60.0)
counters = this_host().spawn_procs({"gpus": 2}).spawn("counters", Counter, 10, restart=policy)
counters.add.call(1).get()

# The first failure is of a process. Who waits for an answer is told, and rank 0 starts over.
try:
    counters.slice(gpus=0).exit.call_one(3).get()
except ProcDied as died:
    print("rank", died.rank, "exited with status", died.exit_code)
print(counts())
assert counts() == [10, 11]

# The second is of an actor: an exception that no caller waits for. Its process goes on.
counters.slice(gpus=1).fail.broadcast()
while counts() != [10, 10]:
    time.sleep(0.01)
print(counts())

# The third is one too many.
counters.slice(gpus=1).fail.broadcast()
told.wait()

# prints:
#   rank 0 exited with status 3
#   [10, 11]
#   [10, 10]
#   told the program: TooManyRestarts, ...ValueError...
