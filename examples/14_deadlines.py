"""Set deadlines for calls, and cancel calls that are no longer needed.

Deadlines and cancellations take effect in the actor: a queued message is removed from the mailbox,
an `async` endpoint is cancelled at its `await`, and a plain one at its next bytecode. The actor is
not affected otherwise and serves the next message. In contrast, `get(timeout=...)` only stops
waiting.
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

# An expired deadline raises a TimeoutError at the caller, and stops the endpoint.
try:
    sleeper.sleep.options(timeout=0.5).call_one(60).get()
except DeadlineExceeded as error:
    assert isinstance(error, TimeoutError)
    print(f"after {time.perf_counter() - started:.1f} s: {error}")

# Cancel two calls: one that is running, and one that is queued behind it.
running, waiting = sleeper.compute.call_one(10**10), sleeper.compute.call_one(1)
assert waiting.cancel()
assert running.cancel()
assert isinstance(running.exception(), CallCancelled)

# To stop waiting is not to cancel: the reply still arrives.
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
