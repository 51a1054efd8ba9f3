"""Random plans for writers and readers of versioned buffers, determined by a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from stamps import LEN_MAX
from version_plans import BufferPlan, ReaderPlan, Scenario, Slice, Visit, Write, WriterPlan

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["scenario_of"]

Made = TypeVar("Made")

TRANSPORTS = ("arena", "attach", "unix", "tcp")
VERBS = ("whole", "slices", "slices", "view", "view", "latest", "hurry", "twice", "sent")
MANNERS = ("in place", "in place", "copied", "given up")
PUBLISHING = MANNERS[:-1]
# Sizes at which copies are split or use another path; sizes and offsets are on both sides.
SEAMS = (0, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, LEN_MAX)
# The maximum sizes in most scenarios, and in some.
SMALL, MIDDLE = 64 << 10, 4 << 20
# From this size on, there are fewer versions and threads, because each needs memory.
LARGE = 4 << 20
# The last attempt in which a writer may be killed.
DEATH_MAX = 60


def scenario_of(random: Random) -> Scenario:
    """Create a random scenario."""
    count = random.choice((1, 1, 2))
    return _ScenarioMaker(random, [_size(random) for _ in range(count)]).make()


def _size(random: Random) -> int:
    limit = random.choice((SMALL, SMALL, MIDDLE, MIDDLE, LEN_MAX))
    return max(_place(random, limit), 1)


def _place(random: Random, length: int) -> int:
    """Return an offset: anywhere, in the first page, or near a seam."""
    seams = [seam for seam in SEAMS if seam < length]
    near = random.choice([*seams, length]) + random.randint(-3, 3)
    anywhere = random.choice((near, random.randint(0, length), random.randint(0, 4096)))
    return min(max(anywhere, 0), length)


class _ScenarioMaker:
    def __init__(self, random: Random, sizes: list[int]) -> None:
        self._random = random
        self._sizes = sizes
        self._threads_max = 1 if max(sizes) > LARGE else 3

    def make(self) -> Scenario:
        deaths = self._random.choice((0, 0, 0, 1, 2))
        return Scenario(
            tuple(self._writer(is_to_die=number < deaths) for number in range(deaths + 1)),
            self._some(1, 3, self._threads),
            self._some(0, 1, self._threads),
        )

    def _writer(self, is_to_die: bool) -> WriterPlan:
        buffers = tuple(self._buffer(nbytes, is_to_die) for nbytes in self._sizes)
        return WriterPlan(buffers, self._some(0, 1, lambda: self._reader("memory")))

    def _buffer(self, nbytes: int, is_to_die: bool) -> BufferPlan:
        def writes() -> tuple[Write, ...]:
            others = self._some(0, 5, lambda: self._write(nbytes, MANNERS))
            return self._write(nbytes, PUBLISHING), *others

        versions = self._random.randint(2, 3 if nbytes > LARGE else 6)
        dies_at = self._random.randint(1, DEATH_MAX) if is_to_die else None
        return BufferPlan(nbytes, versions, self._some(1, 2, writes), dies_at)

    def _write(self, nbytes: int, manners: tuple[str, ...]) -> Write:
        cut = _place(self._random, nbytes)
        return Write(self._random.choice(manners), self._random.randint(1, 3), cut)

    def _threads(self) -> tuple[ReaderPlan, ...]:
        return self._some(1, self._threads_max, lambda: self._reader(self._transport()))

    def _reader(self, transport: str) -> ReaderPlan:
        buffer = self._random.randrange(len(self._sizes))
        nbytes = self._sizes[buffer]
        visits = self._some(2, 5 if nbytes > LARGE else 15, lambda: self._visit(nbytes))
        return ReaderPlan(buffer, transport, visits)

    def _visit(self, nbytes: int) -> Visit:
        return Visit(
            self._random.choice(VERBS),
            self._random.choice((None, 0, 0, 1, 3)),
            self._random.randint(0, 4),
            self._some(1, 4, lambda: self._slice(nbytes)),
        )

    def _slice(self, nbytes: int) -> Slice:
        start, stop = sorted((_place(self._random, nbytes), _place(self._random, nbytes)))
        return Slice(start, stop, self._transport())

    def _transport(self) -> str:
        return self._random.choice(TRANSPORTS)

    def _some(self, least: int, most: int, make: Callable[[], Made]) -> tuple[Made, ...]:
        return tuple(make() for _ in range(self._random.randint(least, most)))
