"""Process results as they arrive, instead of waiting for the slowest actor.

`stream()` yields a future for each actor in the order in which they reply; `with_ranks()` adds the
rank of the actor. An `Accumulator` folds the results into a single value as they arrive.
"""

import operator

from mesh_core import Accumulator, Actor, current_rank, endpoint, this_host


class Searcher(Actor):
    @endpoint
    def primes_below(self, limit: int) -> list[int]:
        """Return the primes in this actor's share of the numbers: later shares take longer."""
        rank, size = current_rank().rank, current_rank().extent.nelements
        share = range(max(2, limit * rank // size), limit * (rank + 1) // size)
        return [n for n in share if all(n % d for d in range(2, int(n**0.5) + 1))]

    @endpoint
    def count_below(self, limit: int) -> int:
        return len(self.primes_below(limit))


searchers = this_host().spawn_procs({"share": 4}).spawn("searchers", Searcher)

answered = set()
for point, future in searchers.primes_below.stream(20_000).with_ranks():
    primes = future.get()
    answered.add(point.rank)
    print(f"share {point['share']}: {len(primes)} primes, the last is {primes[-1]}")
assert answered == {0, 1, 2, 3}

total = Accumulator(searchers.count_below, 0, operator.add).accumulate(20_000).get()
print(f"{total} in all")
assert total == 2262

# prints:
#   2262 in all
