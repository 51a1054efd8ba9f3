"""Measurement of every transport between every two processes, to find slow transports."""

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

__all__ = ["Diagnosis", "Finding", "PathMeasurement", "doctor", "examine_hosts"]

_WORD = 8
_SHORT_READS = 200
_REPEATS = 3
_TIMEOUT_S = 60.0
#: The share of its limit that a transport should reach. The limit is a memory copy measured in the
#: same run or, between machines, the line rate of the network.
_SHARES = {"memory": 0.7, "arena": 0.7, "attach": 0.3, "unix": 0.15, "tcp": 0.15}
_SHARE_OF_LINE = 0.7


@dataclass(frozen=True, slots=True)
class PathMeasurement:
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
        is_selected: Whether the transport is the selected one.
    """

    reader: int
    owner: int
    transport: str
    refused: str | None = None
    bytes_per_s: float | None = None
    latency_s: float | None = None
    limit: str | None = None
    share: float | None = None
    is_selected: bool = False

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
    paths: tuple[PathMeasurement, ...]
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the measurements as JSON-compatible values."""
        paths = [{**asdict(path), "verdict": path.verdict} for path in self.paths]
        return {
            "names": list(self.names),
            "memcpy_bytes_per_s": list(self.memcpy_bytes_per_s),
            "paths": paths,
            "findings": [asdict(one) for one in self.findings],
        }

    def __str__(self) -> str:
        head = (
            f"{'READER':>6} {'OWNER':>6}  {'PATH':<8} {'8 BYTES':>10} {'LONG READ':>12} {'OF':>14}"
        )
        lines = [f"{head}  VERDICT", *map(_line, self.paths), ""]
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
    actors = procs.spawn("rdma_doctor", _DoctorActor, nbytes)
    try:
        profiles = actors.profile.call().get().values()
        members = [actors] if len(profiles) == 1 else _members(actors)
        # Pairs are measured sequentially, because they would slow each other down.
        paths = [
            path
            for reader, owner in _pairs(len(profiles))
            for path in members[reader]
            .measure.call_one(reader, owner, profiles[owner].buffer, profiles[owner].private)
            .get()
        ]
    finally:
        actors.stop().exception()
    names = tuple(one.name for one in profiles)
    speeds = tuple(one.memcpy_bytes_per_s for one in profiles)
    return Diagnosis(names, speeds, tuple(paths), tuple(_findings(paths)))


def examine_hosts(hosts: HostMesh) -> Diagnosis:
    """Start two processes on each host and measure them; implements `mesh doctor rdma`."""
    procs = hosts.spawn_procs({"procs": 2}, name="rdma_doctor")
    try:
        return doctor(procs)
    finally:
        procs.stop().exception()


@dataclass(frozen=True, slots=True)
class _Profile:
    name: str
    memcpy_bytes_per_s: float
    buffer: RDMABuffer
    private: RDMABuffer


class _DoctorActor(Actor):
    """The actor in each measured process."""

    def __init__(self, nbytes: int) -> None:
        self._memory = allocate(nbytes)
        self._other = allocate(nbytes)
        # Some transports are for memory that was not allocated as shared memory.
        self._private = memoryview(bytearray(nbytes))
        _touch(self._private)
        self._memcpy = nbytes / _best(self._copy)
        self._buffers = RDMABuffer(self._memory), RDMABuffer(self._private)

    @endpoint
    def profile(self) -> _Profile:
        buffer, private = self._buffers
        return _Profile(buffer.owner, self._memcpy, buffer, private)

    @endpoint
    def measure(
        self, reader: int, owner: int, buffer: RDMABuffer, private: RDMABuffer
    ) -> list[PathMeasurement]:
        selected = buffer.backend
        # Load on the machine varies, so the limit is measured next to the transports.
        self._memcpy = len(self._memory) / _best(self._copy)
        paths = []
        for name in [*LEVELS, *(one.name for one in transports())]:
            if (name == "memory") != (reader == owner):
                continue  # `memory` is for own memory only, and vice versa.
            source = private if name == "attach" else buffer
            paths.append(self._measure(reader, owner, name, source, name == selected))
        return paths

    def _measure(
        self, reader: int, owner: int, name: str, source: RDMABuffer, is_selected: bool
    ) -> PathMeasurement:
        try:
            through = RDMABuffer._of(
                source._handle, source.size(), 0, path_to(source._handle, name)
            )
            short, word = through[:_WORD], bytearray(_WORD)
            latency = median(
                _timed(lambda: short.read_into(word, timeout=_TIMEOUT_S).get())
                for _ in range(_SHORT_READS)
            )
            best = _best(lambda: through.read_into(self._other, timeout=_TIMEOUT_S).get())
        except RDMAError as error:
            return PathMeasurement(reader, owner, name, refused=str(error))
        speed = source.size() / best
        line = None if source._handle.is_same_machine else _line_rate()
        limit = self._memcpy if source._handle.is_same_machine else line
        return PathMeasurement(
            reader, owner, name, None, speed, latency,
            None if limit is None else "line" if line else "memcpy",
            None if limit is None else speed / limit,
            is_selected,
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


def _findings(paths: list[PathMeasurement]) -> Iterator[Finding]:
    for path in paths:
        where = f"rank {path.reader} from rank {path.owner} by {path.transport}"
        if path.is_good is False and path.share is not None:
            limit = "a memory copy" if path.limit == "memcpy" else "the line rate"
            yield Finding(
                where,
                f"{path.share:.0%} of {limit}",
                "check for other load on the machine, then report it with this output",
            )
        elif path.refused is not None and "ptrace_scope" in path.refused:
            yield Finding(
                where, "not permitted", "sysctl kernel.yama.ptrace_scope=0, or use allocate()"
            )


def _line(path: PathMeasurement) -> str:
    pair = (
        f"{path.reader:>6} {path.owner:>6}  {path.transport + ('*' if path.is_selected else ''):<8}"
    )
    if path.refused is not None:
        return f"{pair} {'-':>10} {'-':>12} {'-':>14}  {path.refused}"
    latency = f"{(path.latency_s or 0) * 1e6:.1f} us"
    speed = f"{(path.bytes_per_s or 0) / 2**30:.2f} GiB/s"
    share = "-" if path.share is None else f"{path.share:.0%} of {path.limit}"
    return f"{pair} {latency:>10} {speed:>12} {share:>14}  {path.verdict}"
