"""The plans of writers and readers of versioned buffers, and their results."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "STRIDE",
    "BufferPlan",
    "ReaderPlan",
    "Scenario",
    "Slice",
    "Tally",
    "Visit",
    "Write",
    "WriterPlan",
]

#: Published versions have numbers that are multiples of this; abandoned ones do not.
STRIDE = 8


@dataclass(frozen=True)
class Write:
    """One attempt to write a version.

    Attributes:
        manner: In place, copied, or abandoned halfway.
        gap: The difference of its number to the last one.
        cut: The number of bytes written before other threads may run.
    """

    manner: str
    gap: int
    cut: int


@dataclass(frozen=True)
class BufferPlan:
    """One versioned buffer.

    Attributes:
        nbytes: The size of a version in bytes.
        versions: The maximum number of versions in memory.
        writes: The attempts of each writing thread, which repeats them.
        dies_at: The attempt during which the process is killed.
    """

    nbytes: int
    versions: int
    writes: tuple[tuple[Write, ...], ...]
    dies_at: int | None


@dataclass(frozen=True)
class Slice:
    """Some bytes of a version, and the transport that reads them."""

    start: int
    stop: int
    transport: str


@dataclass(frozen=True)
class Visit:
    """The use of one version.

    Attributes:
        verb: A method of the reader's thread.
        skip: The number of versions to skip; None takes the current one.
        linger: The number of newer versions during which the lease is held, if they come soon.
        slices: The ranges to read.
    """

    verb: str
    skip: int | None
    linger: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class ReaderPlan:
    """One reading thread.

    Attributes:
        buffer: The index of the buffer.
        transport: The transport for detecting new versions and reading whole ones.
        visits: The visits that the thread makes.
    """

    buffer: int
    transport: str
    visits: tuple[Visit, ...]


@dataclass(frozen=True)
class WriterPlan:
    """A writing process that also has reading threads."""

    buffers: tuple[BufferPlan, ...]
    readers: tuple[ReaderPlan, ...]


@dataclass(frozen=True)
class Scenario:
    """Successive writers, and processes that read all of them.

    Attributes:
        writers: The writers; all but the last one are killed.
        readers: The threads of each process that reads all writers.
        victims: The threads of processes that are killed while they read the last writer.
    """

    writers: tuple[WriterPlan, ...]
    readers: tuple[tuple[ReaderPlan, ...], ...]
    victims: tuple[tuple[ReaderPlan, ...], ...]


@dataclass
class Tally:
    """The observations of one reading thread.

    Attributes:
        buffer: The index of the buffer.
        steps: The numbers of the versions that it held.
        reads: The number of ranges with the expected content.
        nbytes: The number of bytes in these ranges.
        late: The number of reads that timed out.
        has_lost: Whether the writer died.
        failure: A description of unexpected content.
    """

    buffer: int
    steps: set[int] = field(default_factory=set)
    reads: int = 0
    nbytes: int = 0
    late: int = 0
    has_lost: bool = False
    failure: str | None = None
