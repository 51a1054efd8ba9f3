"""Handle failures in other processes with ordinary `except` clauses.

An exception in an actor arrives with its original type and the traceback of the remote process. If
several ranks fail, one failure is raised and lists the others. The death of a process is reported
as an exception, too, within milliseconds. Other processes are not affected.
"""

import os
import signal

from mesh_core import Actor, ActorError, ProcDied, current_rank, endpoint, this_host


class Divider(Actor):
    @endpoint
    def divide(self, n: int) -> float:
        return n / (current_rank().rank % 2)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


procs = this_host().spawn_procs({"gpus": 4})
dividers = procs.spawn("dividers", Divider)

# The exception is both a `ZeroDivisionError` and an `ActorError`, so either clause catches it.
try:
    dividers.divide.call(6).get()
except ZeroDivisionError as error:
    assert isinstance(error, ActorError)
    assert "return n / (current_rank().rank % 2)" in error.exception_formatted
    print(f"{error.message}, at rank {error.rank}")
    print("ranks that failed:", [one.rank for _, one in error.failures])
    assert [one.rank for _, one in error.failures] == [0, 2]

# The results of the other ranks are not lost: request both results and exceptions.
outcomes = dividers.divide.options(return_exceptions=True).call(6).get()
print([type(one).__name__ for one in outcomes.values()])
assert outcomes.get(1) == outcomes.get(3) == 6.0

# The call that waits for a dead process raises an error with all known details.
victim = dividers.slice(gpus=2).pid.call_one().get()
os.kill(victim, signal.SIGKILL)
try:
    dividers.pid.call().get()
except ProcDied as died:
    assert (died.rank, died.pid, died.signal) == (2, victim, signal.SIGKILL)
    print(str(died).splitlines()[0].replace(str(victim), "..."))

# The other processes are not affected.
print(len(dividers.slice(gpus=[0, 1, 3]).pid.call().get()), "ranks go on")

# prints:
#   division by zero, at rank ...
#   ranks that failed: [0, 2]
#   [..., 'float', ..., 'float']
#   actor 'Divider' of mesh ..., rank 2 ... died: killed by SIGKILL (signal 9); ...
#   3 ranks go on
