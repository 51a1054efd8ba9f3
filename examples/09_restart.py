"""Restart failed actors automatically, before their owner is notified.

`spawn(..., restart=...)` accepts the restart types of Erlang/OTP: `permanent`, `transient` and
`temporary`. Within the limits of a `RestartPolicy`, Mesh restarts a failed actor or a dead process
at the same rank, with its original arguments, and handles stay valid. The next failure is reported
to the owner, which is the program in this example.
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
    """Return the counts of all ranks; retry while one of them is being restarted."""
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

# The first failure is the death of a process. The caller gets an error, and rank 0 restarts.
try:
    counters.slice(gpus=0).exit.call_one(3).get()
except ProcDied as died:
    print("rank", died.rank, "exited with status", died.exit_code)
print(counts())
assert counts() == [10, 11]

# The second is an actor failure: an exception that no caller waits for. Its process keeps running.
counters.slice(gpus=1).fail.broadcast()
while counts() != [10, 10]:
    time.sleep(0.01)
print(counts())

# The third failure exceeds the limit.
counters.slice(gpus=1).fail.broadcast()
told.wait()

# prints:
#   rank 0 exited with status 3
#   [10, 11]
#   [10, 10]
#   told the program: TooManyRestarts, ...ValueError...
