"""Measurement of every transport between every two processes, to find those that are too slow."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mesh_core import Actor, endpoint
from mesh_rdma._buffers.arena import allocate
from mesh_rdma._buffers.buffer import RDMABuffer
from mesh_rdma._errors import RDMAError
from mesh_rdma._paths.selection import LEVELS, path_to
from mesh_rdma._plugins.registry import transports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import HostMesh, ProcMesh

__all__ = ["Diagnosis", "Finding", "Way", "doctor", "examine_hosts"]

_WORD = 8
_ASKED = 200
_REPEATS = 3
_TIMEOUT_S = 60.0
#: The share of its limit that a transport should reach. The limit is a memory copy measured in the
#: same run or, between machines, the line rate of the network.
_SHARES = {"memory": 0.7, "arena": 0.7, "attach": 0.3, "unix": 0.15, "tcp": 0.15}
_SHARE_OF_LINE = 0.7


@dataclass(frozen=True, slots=True)
class Way:
    """The measurement of one transport between two processes.

    Attributes:
        reader: The rank that reads.
        owner: The rank that owns the memory.
        transport: The name of the transport.
        refused: The reason why the transport cannot be used, or None.
        bytes_per_s: The throughput of a long read.
        latency_s: The median latency of a read of 8 bytes.
        limit: The limit for comparison, `memcpy` or `line`; None if the line rate is unknown.
        share: The fraction of the limit that the transport reaches.
        is_taken: Whether the transport is the selected one.
    """

    reader: int
    owner: int
    transport: str
    refused: str | None = None
    bytes_per_s: float | None = None
    latency_s: float | None = None
    limit: str | None = None
    share: float | None = None
    is_taken: bool = False

    @property
    def is_good(self) -> bool | None:
        """Whether the transport is as fast as it should be; None if that is unknown."""
        if self.share is None:
            return None
        least = _SHARE_OF_LINE if self.limit == "line" else _SHARES.get(self.transport, 0.0)
        return self.share >= least

    @property
    def verdict(self) -> str:
        """The result in one or two words, or the reason why the transport cannot be used."""
        if self.refused is not None:
            return self.refused
        return {True: "good", False: "slow", None: "no limit known"}[self.is_good]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that was found, and how to fix it."""

    where: str
    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The measurements of a set of processes."""

    names: tuple[str, ...]
    """The name of each process, by rank."""
    memcpy_bytes_per_s: tuple[float, ...]
    """The memory copy throughput of each process, by rank."""
    ways: tuple[Way, ...]
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the measurements as JSON-compatible values."""
        ways = [{**asdict(way), "verdict": way.verdict} for way in self.ways]
        return {
            "names": list(self.names),
            "memcpy_bytes_per_s": list(self.memcpy_bytes_per_s),
            "ways": ways,
            "findings": [asdict(one) for one in self.findings],
        }

    def __str__(self) -> str:
        head = (
            f"{'READER':>6} {'OWNER':>6}  {'WAY':<8} {'8 BYTES':>10} {'LONG READ':>12} {'OF':>14}"
        )
        lines = [f"{head}  VERDICT", *map(_line, self.ways), ""]
        lines += [f"{one.where}: {one.what}: {one.advice}" for one in self.findings]
        return "\n".join(lines if self.findings else [*lines, "no problems found"])


def doctor(procs: ProcMesh, *, nbytes: int = 64 << 20) -> Diagnosis:
    """Read memory of each process from each other process, over every available transport.

    Args:
        procs: The processes; every ordered pair of them is measured.
        nbytes: The size of a long read in bytes. Several long reads are made; the fastest one
            counts.

    Raises:
        SupervisionError: A process died during the measurement.

    Example:
        >>> print(doctor(this_host().spawn_procs({"procs": 2})))
    """
    actors = procs.spawn("rdma_doctor", _Examined, nbytes)
    try:
        facts = actors.facts.call().get().values()
        members = [actors] if len(facts) == 1 else _members(actors)
        # Pairs are measured sequentially, because they would slow each other down.
        ways = [
            way
            for reader, owner in _pairs(len(facts))
            for way in members[reader]
            .examine.call_one(reader, owner, facts[owner].buffer, facts[owner].plain)
            .get()
        ]
    finally:
        actors.stop().exception()
    names = tuple(one.name for one in facts)
    speeds = tuple(one.memcpy_bytes_per_s for one in facts)
    return Diagnosis(names, speeds, tuple(ways), tuple(_findings(ways)))


def examine_hosts(hosts: HostMesh) -> Diagnosis:
    """Start two processes on each host and measure them; implements `mesh doctor rdma`."""
    procs = hosts.spawn_procs({"procs": 2}, name="rdma_doctor")
    try:
        return doctor(procs)
    finally:
        procs.stop().exception()


@dataclass(frozen=True, slots=True)
class _Facts:
    name: str
    memcpy_bytes_per_s: float
    buffer: RDMABuffer
    plain: RDMABuffer


class _Examined(Actor):
    """The actor in each measured process."""

    def __init__(self, nbytes: int) -> None:
        self._memory = allocate(nbytes)
        self._other = allocate(nbytes)
        # Some transports are for memory that was not allocated as shared memory.
        self._plain = memoryview(bytearray(nbytes))
        _touch(self._plain)
        self._memcpy = nbytes / _best(self._copy)
        self._buffers = RDMABuffer(self._memory), RDMABuffer(self._plain)

    @endpoint
    def facts(self) -> _Facts:
        buffer, plain = self._buffers
        return _Facts(buffer.owner, self._memcpy, buffer, plain)

    @endpoint
    def examine(self, reader: int, owner: int, buffer: RDMABuffer, plain: RDMABuffer) -> list[Way]:
        taken = buffer.backend
        # Load on the machine varies, so the limit is measured next to the transports.
        self._memcpy = len(self._memory) / _best(self._copy)
        ways = []
        for name in [*LEVELS, *(one.name for one in transports())]:
            if (name == "memory") != (reader == owner):
                continue  # `memory` is for own memory only, and vice versa.
            source = plain if name == "attach" else buffer
            ways.append(self._measure(reader, owner, name, source, name == taken))
        return ways

    def _measure(
        self, reader: int, owner: int, name: str, source: RDMABuffer, is_taken: bool
    ) -> Way:
        try:
            reached = RDMABuffer._of(
                source._handle, source.size(), 0, path_to(source._handle, name)
            )
            short, word = reached[:_WORD], bytearray(_WORD)
            latency = median(
                _timed(lambda: short.read_into(word, timeout=_TIMEOUT_S).get())
                for _ in range(_ASKED)
            )
            best = _best(lambda: reached.read_into(self._other, timeout=_TIMEOUT_S).get())
        except RDMAError as error:
            return Way(reader, owner, name, refused=str(error))
        speed = source.size() / best
        line = None if source._handle.is_nearby else _line_rate()
        limit = self._memcpy if source._handle.is_nearby else line
        return Way(
            reader, owner, name, None, speed, latency,
            None if limit is None else "line" if line else "memcpy",
            None if limit is None else speed / limit,
            is_taken,
        )  # fmt: skip

    def _copy(self) -> None:
        self._other[:] = self._memory


def _members(actors: Any) -> list[Any]:
    flat = actors.flatten("rank")
    return [flat.slice(rank=rank) for rank in range(len(flat))]


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    if count == 1:
        yield 0, 0
    for reader in range(count):
        yield from ((reader, owner) for owner in range(count) if owner != reader)


def _touch(memory: memoryview) -> None:
    """Write to every page, so that the system allocates all of them."""
    memory[::4096] = bytes(len(memory[::4096]))


def _best(run: Any) -> float:
    return min(_timed(run) for _ in range(_REPEATS))


def _timed(run: Any) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def _line_rate() -> float | None:
    """Return the bytes per second of the fastest network interface that reports its speed."""
    rates = []
    for speed in Path("/sys/class/net").glob("*/speed"):
        try:
            rates.append(int(speed.read_text()))
        except (OSError, ValueError):
            continue  # An interface that is down or virtual does not report a speed.
    best = max(rates, default=0)
    return best * 1e6 / 8 if best > 0 else None


def _findings(ways: list[Way]) -> Iterator[Finding]:
    for way in ways:
        where = f"rank {way.reader} from rank {way.owner} by {way.transport}"
        if way.is_good is False and way.share is not None:
            limit = "a memory copy" if way.limit == "memcpy" else "the line rate"
            yield Finding(
                where,
                f"{way.share:.0%} of {limit}",
                "check for other load on the machine, then report it with this output",
            )
        elif way.refused is not None and "ptrace_scope" in way.refused:
            yield Finding(
                where, "not permitted", "sysctl kernel.yama.ptrace_scope=0, or use allocate()"
            )


def _line(way: Way) -> str:
    pair = f"{way.reader:>6} {way.owner:>6}  {way.transport + ('*' if way.is_taken else ''):<8}"
    if way.refused is not None:
        return f"{pair} {'-':>10} {'-':>12} {'-':>14}  {way.refused}"
    latency = f"{(way.latency_s or 0) * 1e6:.1f} us"
    speed = f"{(way.bytes_per_s or 0) / 2**30:.2f} GiB/s"
    share = "-" if way.share is None else f"{way.share:.0%} of {way.limit}"
    return f"{pair} {latency:>10} {speed:>12} {share:>14}  {way.verdict}"
