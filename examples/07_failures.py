"""Catches what goes wrong in other processes with the `except` clauses of an ordinary program.

An exception of an actor arrives as its own type, with the traceback of where it was raised. When
several ranks fail, one failure is raised and names the others. The death of a process is an
exception too, known within milliseconds. None of this hurts any other process.
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

# `except ZeroDivisionError` works, and so does `except ActorError`: it is both.
try:
    dividers.divide.call(6).get()
except ZeroDivisionError as error:
    assert isinstance(error, ActorError)
    assert "return n / (current_rank().rank % 2)" in error.exception_formatted
    print(f"{error.message}, at rank {error.rank}")
    print("ranks that failed:", [one.rank for _, one in error.failures])
    assert [one.rank for _, one in error.failures] == [0, 2]

# What the other ranks have answered is not lost: ask for results and exceptions.
outcomes = dividers.divide.options(return_exceptions=True).call(6).get()
print([type(one).__name__ for one in outcomes.values()])
assert outcomes.get(1) == outcomes.get(3) == 6.0

# A process that dies is an error of the call that waits for it, with all that is known.
victim = dividers.slice(gpus=2).pid.call_one().get()
os.kill(victim, signal.SIGKILL)
try:
    dividers.pid.call().get()
except ProcDied as died:
    assert (died.rank, died.pid, died.signal) == (2, victim, signal.SIGKILL)
    print(str(died).splitlines()[0].replace(str(victim), "..."))

# The others never noticed.
print(len(dividers.slice(gpus=[0, 1, 3]).pid.call().get()), "ranks go on")

# prints:
#   division by zero, at rank ...
#   ranks that failed: [0, 2]
#   [..., 'float', ..., 'float']
#   actor 'Divider' of mesh ..., rank 2 ... died: killed by SIGKILL (signal 9); ...
#   3 ranks go on
