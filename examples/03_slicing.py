"""Call a part of a mesh: a slice supports everything that a mesh does, but has fewer members.

A slice is only a description, so creating one costs nothing. It selects positions, ranges with a
step in either direction, or lists. A slice can be called, split, flattened, sliced again, and sent
in a message.
"""

from mesh_core import Actor, endpoint, this_host


class Counter(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def add(self, n: int) -> None:
        self.count += n

    @endpoint
    def value(self) -> int:
        return self.count


counters = this_host().spawn_procs({"host": 2, "gpu": 4}).spawn("counters", Counter)

counters.add.call(1).get()
counters.slice(host=0).add.call(10).get()
counters.slice(gpu=-1).add.call(100).get()
counters.slice(gpu=slice(None, None, 2)).add.call(1000).get()
counters.slice(host=1, gpu=[1, 2]).add.call(10000).get()

values = counters.value.call().get()
for host in range(2):
    print(f"host {host}:", *values.slice(host=host).values())
assert list(values.slice(host=0).values()) == [1011, 11, 1011, 111]
assert list(values.slice(host=1).values()) == [1001, 10001, 11001, 101]

# Ranks in a slice count from 0, and slices with the same members are equal.
backwards = counters.slice(host=1, gpu=slice(None, None, -1))
assert list(backwards.value.call().get().values()) == [101, 11001, 10001, 1001]
assert counters.slice(host=1).slice(gpu=3) == counters.slice(host=1, gpu=-1) == backwards[0]
print("backwards:", *backwards.value.call().get().values())

# prints:
#   host 0: 1011 11 1011 111
#   host 1: 1001 10001 11001 101
#   backwards: 101 11001 10001 1001
