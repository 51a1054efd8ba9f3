"""Let actors call each other: a mesh handle can be sent in messages like any other value.

Each reader calls the counter of the same rank, and all counters call one total, directly from
process to process. The program only starts the work and fetches the result.
"""

from collections import Counter as Tally

from mesh_core import Actor, current_rank, endpoint, this_host

LINES = ["the cat and the dog", "a dog and a cat", "the end", "and the cat sat"]


class Total(Actor):
    def __init__(self) -> None:
        self.words: Tally[str] = Tally()

    @endpoint
    def add(self, words: dict[str, int]) -> None:
        self.words.update(words)

    @endpoint
    def most_common(self, n: int) -> list[tuple[str, int]]:
        return self.words.most_common(n)


class WordCounter(Actor):
    def __init__(self, total: Total) -> None:
        self.total = total

    @endpoint
    def count(self, line: str) -> int:
        words = line.split()
        self.total.add.call_one(dict(Tally(words))).get()
        return len(words)


class Reader(Actor):
    def __init__(self, counters: WordCounter) -> None:
        me = current_rank().rank
        self.mine = counters.slice(rank=me)
        self.lines = LINES[me::2]

    @endpoint
    async def read(self) -> int:
        return sum([await self.mine.count.call_one(line) for line in self.lines])


host = this_host()
total = host.spawn_procs().spawn("total", Total)
counters = host.spawn_procs({"rank": 2}).spawn("counters", WordCounter, total)
readers = host.spawn_procs({"rank": 2}).spawn("readers", Reader, counters)

words = readers.read.call().get()
assert sum(words.values()) == sum(len(line.split()) for line in LINES)
print("words read by each reader:", list(words.values()))
common = total.most_common.call_one(1).get()
assert common == [("the", 4)]
print("the most common word:", *common[0])

# prints:
#   words read by each reader: [7, 9]
#   the most common word: the 4
