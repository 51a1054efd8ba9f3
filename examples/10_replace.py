"""Replace a dead process in a running mesh, and restore the state of its actor.

A rank identifies a position. `replace(rank)` starts a new process at this position and spawns its
actors again with their original arguments. Every handle and slice stays valid, in all processes.
The program must restore the state that the actor had acquired since: this one copies it from
another replica.
"""

import os
import signal
import time

from mesh_core import Actor, ProcDied, endpoint, this_host


class Replica(Actor):
    def __init__(self) -> None:
        self.entries: dict[str, int] = {}

    @endpoint
    def put(self, key: str, value: int) -> None:
        self.entries[key] = value

    @endpoint
    def entries_held(self) -> dict[str, int]:
        return self.entries

    @endpoint
    def restore(self, entries: dict[str, int]) -> None:
        self.entries = entries

    @endpoint
    def pid(self) -> int:
        return os.getpid()


procs = this_host().spawn_procs({"replica": 3})
replicas = procs.spawn("replicas", Replica)
last = replicas.slice(replica=-1)
replicas.put.call("answer", 42).get()
first_pid = last.pid.call_one().get()

os.kill(first_pid, signal.SIGKILL)
started = time.perf_counter()
try:
    replicas.put.call("question", 7).get()
except ProcDied as died:
    print(f"rank {died.rank} died, known after {(time.perf_counter() - started) * 1000:.0f} ms")
    procs.replace(died.rank)
    neighbour = replicas.slice(replica=0)
    last.restore.call_one(neighbour.entries_held.call_one().get()).get()
    print(f"replaced and restored after {(time.perf_counter() - started) * 1000:.0f} ms")

# The other replicas had served the failed call, and the new one has copied their entries.
assert list(replicas.entries_held.call().get().values()) == [{"answer": 42, "question": 7}] * 3
assert last.pid.call_one().get() != first_pid
print("all three hold", replicas.entries_held.call().get().get(2))

# prints:
#   rank 2 died, known after ... ms
#   replaced and restored after ... ms
#   all three hold {'answer': 42, 'question': 7}
