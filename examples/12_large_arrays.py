"""Send large arrays to many processes of a host without a copy for each of them.

Buffers above a size threshold bypass the sockets: Mesh copies them once into shared memory, which
every receiver maps. A receiver may write to its array without affecting others, and the sender may
keep writing to the original. The calls look the same as for small arguments.
"""

import time

import numpy as np

from mesh_core import Actor, current_rank, endpoint, this_host

MEGABYTES = 32


class Holder(Actor):
    @endpoint
    def keep(self, array: np.ndarray) -> float:
        self.array = array
        return float(array[0])

    @endpoint
    def overwrite(self) -> float:
        self.array[:] = current_rank().rank
        return float(self.array.sum())

    @endpoint
    def give_back(self) -> np.ndarray:
        return self.array


holders = this_host().spawn_procs({"gpus": 4}).spawn("holders", Holder)
array = np.ones(MEGABYTES << 17)

for attempt in ("first", "second"):
    started = time.perf_counter()
    holders.keep.call(array).get()
    took_ms = (time.perf_counter() - started) * 1000
    print(f"{MEGABYTES} MB to {len(holders)} processes, {attempt} time: {took_ms:.0f} ms")

# Receivers do not see later writes by the sender, nor the writes of other receivers.
array[:] = 7
sums = holders.overwrite.call().get()
assert list(sums.values()) == [array.size * rank for rank in range(4)]
print("each wrote over its own:", [int(one / array.size) for one in sums.values()])

# Results are transferred in the same way, and are writable as well.
answer = holders.slice(gpus=3).give_back.call_one().get()
answer += 1
assert (answer == 4).all()
print("an answer of", answer.nbytes >> 20, "MB")

# prints:
#   32 MB to 4 processes, first time: ... ms
#   32 MB to 4 processes, second time: ... ms
#   each wrote over its own: [0, 1, 2, 3]
#   an answer of 32 MB
