"""What writers and readers of versioned buffers are to do, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "STRIDE",
    "BufferPlan",
    "Game",
    "ReaderPlan",
    "Slice",
    "Tally",
    "Visit",
    "Write",
    "WriterPlan",
]

#: Numbers of versions are multiples of this; those of versions that are given up are none.
STRIDE = 8


@dataclass(frozen=True)
class Write:
    """One attempt to write a version.

    Attributes:
        manner: In place, copied, or given up half way.
        gap: How far the number is from the last one.
        cut: How many bytes are written before others may run.
    """

    manner: str
    gap: int
    cut: int


@dataclass(frozen=True)
class BufferPlan:
    """One versioned buffer.

    Attributes:
        nbytes: How many bytes a version has.
        versions: How many may be in memory.
        writes: What each of its writing threads does, again and again.
        dies_at: The attempt in the middle of which the process is killed.
    """

    nbytes: int
    versions: int
    writes: tuple[tuple[Write, ...], ...]
    dies_at: int | None


@dataclass(frozen=True)
class Slice:
    """Some bytes of a version, and how they are read."""

    start: int
    stop: int
    transport: str


@dataclass(frozen=True)
class Visit:
    """What is done with one version.

    Attributes:
        verb: A method of the reader's thread.
        skip: How many versions are not of interest; None takes the one that is there.
        linger: For how many newer versions the lease is held, if they come soon.
        slices: What is read.
    """

    verb: str
    skip: int | None
    linger: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class ReaderPlan:
    """One thread that reads.

    Attributes:
        buffer: Which buffer.
        transport: How it looks for new versions, and reads whole ones.
        visits: What it does.
    """

    buffer: int
    transport: str
    visits: tuple[Visit, ...]


@dataclass(frozen=True)
class WriterPlan:
    """A process that writes, with threads in it that read."""

    buffers: tuple[BufferPlan, ...]
    readers: tuple[ReaderPlan, ...]


@dataclass(frozen=True)
class Game:
    """Writers, one after another, and processes that read them all.

    Attributes:
        writers: All but the last are killed.
        readers: The threads of each process that reads all writers.
        victims: Those of processes that are killed while they read the last one.
    """

    writers: tuple[WriterPlan, ...]
    readers: tuple[tuple[ReaderPlan, ...], ...]
    victims: tuple[tuple[ReaderPlan, ...], ...]


@dataclass
class Tally:
    """What one thread that reads has seen.

    Attributes:
        buffer: Of which buffer.
        steps: The numbers of the versions that it had.
        reads: How many ranges were as they should be.
        nbytes: How many bytes those were.
        late: How many reads were given up in time.
        has_lost: Whether the writer has died.
        failure: What was not as it should be.
    """

    buffer: int
    steps: set[int] = field(default_factory=set)
    reads: int = 0
    nbytes: int = 0
    late: int = 0
    has_lost: bool = False
    failure: str | None = None
