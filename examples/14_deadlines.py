"""Gives calls a deadline, and takes back those that are not wanted any more.

A deadline and a cancellation reach the actor: a message that waits is taken out of its mailbox, an
`async` endpoint is cancelled at its `await`, a plain one at its next bytecode. The actor is not
hurt, and serves what comes next. `get(timeout=...)` is something else: it stops the waiting only.
"""

import asyncio
import time

from mesh_core import Actor, CallCancelled, DeadlineExceeded, endpoint, this_host


class Sleeper(Actor):
    def __init__(self) -> None:
        self.log: list[str] = []

    @endpoint
    async def sleep(self, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.log.append("woken early")
            raise
        return "slept well"

    @endpoint
    def compute(self, steps: int) -> int:
        self.log.append("computing")
        return sum(n % 7 for n in range(steps))

    @endpoint
    def what_happened(self) -> list[str]:
        return self.log


sleeper = this_host().spawn_procs().spawn("sleeper", Sleeper)
sleeper.what_happened.call_one().get()
started = time.perf_counter()

# A deadline: a TimeoutError, also where it runs.
try:
    sleeper.sleep.options(timeout=0.5).call_one(60).get()
except DeadlineExceeded as error:
    assert isinstance(error, TimeoutError)
    print(f"after {time.perf_counter() - started:.1f} s: {error}")

# A cancellation, of one call that runs and of one that waits behind it.
running, waiting = sleeper.compute.call_one(10**10), sleeper.compute.call_one(1)
assert waiting.cancel()
assert running.cancel()
assert isinstance(running.exception(), CallCancelled)

# To stop waiting is not to cancel: the answer still comes.
nap = sleeper.sleep.call_one(0.5)
try:
    nap.get(timeout=0.01)
except TimeoutError:
    print("not yet, but then it", nap.get())

log = sleeper.what_happened.call_one().get()
assert log.count("woken early") == 1
assert log.count("computing") <= 1
assert time.perf_counter() - started < 30
print("the actor serves on:", log)

# prints:
#   after ... s: call of 'sleep' ... took longer than its timeout of 0.5 s: ...
#   not yet, but then it slept well
#   the actor serves on: ['woken early'...]
