"""Sends large arrays to many processes of a host without a copy for each.

Buffers above a threshold do not go through sockets: they are copied once into shared memory, which
every receiver maps. A receiver may write to what it got, and nobody else sees it; the sender may go
on writing to its own. Nothing about the calls is different.
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

# What the sender writes afterwards, they do not see; what each of them writes is its own.
array[:] = 7
sums = holders.overwrite.call().get()
assert list(sums.values()) == [array.size * rank for rank in range(4)]
print("each wrote over its own:", [int(one / array.size) for one in sums.values()])

# Answers travel in the same way, and can be written to as well.
answer = holders.slice(gpus=3).give_back.call_one().get()
answer += 1
assert (answer == 4).all()
print("an answer of", answer.nbytes >> 20, "MB")

# prints:
#   32 MB to 4 processes, first time: ... ms
#   32 MB to 4 processes, second time: ... ms
#   each wrote over its own: [0, 1, 2, 3]
#   an answer of 32 MB
