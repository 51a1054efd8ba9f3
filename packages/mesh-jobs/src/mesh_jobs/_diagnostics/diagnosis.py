"""Diagnosis of a mesh: probes each host and each pair of hosts, and reports findings."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from mesh_core import MeshError
from mesh_jobs._diagnostics.probe import HostProbe, HostProbeResult, PairProbeResult, core_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mesh_core import HostMesh

__all__ = ["Diagnosis", "Finding", "Thresholds", "examine", "rounds"]

_CLOCK_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits above which a measurement is reported."""

    clock_s: float = 1.0
    """The difference between two clocks, in seconds."""
    latency_s: float = 0.01
    slow_link: float = 0.25
    """The fraction of the median bandwidth below which a link is reported as slow."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and how to fix it."""

    where: str
    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result for one mesh."""

    mesh: str
    hosts: tuple[HostProbeResult, ...]
    clock_ahead_s: tuple[float, ...]
    """The offset of each host's clock from the local clock, in seconds."""
    pairs: dict[tuple[int, int], PairProbeResult]
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as values that JSON can hold."""
        return {
            "mesh": self.mesh,
            "hosts": [
                {**asdict(result), "clock_ahead_s": ahead}
                for result, ahead in zip(self.hosts, self.clock_ahead_s, strict=True)
            ],
            "pairs": [
                {"from": one, "to": other, **asdict(result)}
                for (one, other), result in self.pairs.items()
            ],
            "findings": [asdict(finding) for finding in self.findings],
        }


def examine(
    name: str,
    host_mesh: HostMesh,
    *,
    payload_len: int,
    limits: Thresholds | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Diagnosis:
    """Probe each host of a mesh, and the connection of each ordered pair of hosts.

    Args:
        name: The name of the mesh, for the result.
        host_mesh: The hosts.
        payload_len: The number of bytes that each host sends to each other host; 0 skips the
            bandwidth test.
        limits: Limits above which a measurement becomes a finding.
        progress: A function that is called before each round, with the number of finished rounds
            and of all rounds.

    Raises:
        MeshError: A host is lost.
    """
    procs = host_mesh.spawn_procs(name="doctor")
    try:
        probes = procs.spawn("probes", HostProbe)
        members = [probes] if len(probes) == 1 else [probes[at] for at in range(len(procs))]
        hosts = tuple(probes.describe.call().get().values())
        ahead = tuple(_clock_ahead(member) for member in members)
        pairs: dict[tuple[int, int], PairProbeResult] = {}
        plan = list(rounds(len(members)))
        for done, pairings in enumerate(plan):
            progress(done, len(plan))
            # The pairs of a round share no host, so their transfers do not compete for a link.
            calls = {
                (one, other): members[one].examine.call_one(
                    members[other], hosts[other].name, payload_len
                )
                for one, other in pairings
            }
            for pair, call in calls.items():
                pairs[pair] = _outcome(call)
    finally:
        procs.stop().exception()
    found = tuple(_findings(hosts, ahead, pairs, limits or Thresholds()))
    return Diagnosis(name, hosts, ahead, dict(sorted(pairs.items())), found)


def rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """Yield all ordered pairs, in rounds in which no index occurs twice."""
    # The circle method of round-robin tournaments: the first slot is fixed, and the others rotate.
    slots: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    for _ in range(len(slots) - 1):
        half = len(slots) // 2
        opposite = zip(slots[:half], reversed(slots[half:]), strict=True)
        pairings = [(a, b) for a, b in opposite if a is not None and b is not None]
        if pairings:
            yield pairings
            yield [(b, a) for a, b in pairings]
        slots = [slots[0], slots[-1], *slots[1:-1]]


def _outcome(call: Any) -> PairProbeResult:
    try:
        result: PairProbeResult = call.get()
    except MeshError as error:
        return PairProbeResult((), problem=str(error).partition("\n")[0])
    return result


def _clock_ahead(member: HostProbe) -> float:
    """Measure the offset of a clock, using the sample with the shortest round trip."""
    best = (float("inf"), 0.0)
    for _ in range(_CLOCK_SAMPLES):
        began = time.time()
        there = member.clock.call_one().get()
        took_s = time.time() - began
        best = min(best, (took_s, there - (began + took_s / 2)))
    return best[1]


def _findings(
    hosts: Sequence[HostProbeResult],
    ahead: Sequence[float],
    pairs: dict[tuple[int, int], PairProbeResult],
    limits: Thresholds,
) -> Iterator[Finding]:
    for at, host in enumerate(hosts):
        yield from _of_host(at, host)
    for (one, other), result in sorted(pairs.items()):
        where = f"host {one} to host {other}"
        difference_s = ahead[other] - ahead[one]
        # Each pair is reported once, in the direction from the host that is behind.
        if difference_s > limits.clock_s:
            yield Finding(
                where,
                f"the clock of {hosts[other].name} is {difference_s:.1f} s ahead",
                f"synchronize the clocks of {hosts[one].name} and {hosts[other].name}, such as by "
                "NTP",
            )
        yield from _of_pair(where, hosts[other].name, result, limits)
    yield from _slow_links(pairs, limits)


def _of_host(at: int, result: HostProbeResult) -> Iterator[Finding]:
    ours = {"Python": platform.python_version(), "torchmesh-core": core_version()}
    theirs = {"Python": result.python, "torchmesh-core": result.mesh}
    for what, there in theirs.items():
        here = ours[what]
        if there.split(".")[:2] != here.split(".")[:2]:
            yield Finding(
                f"host {at}",
                f"{result.name} has {what} {there}, but this machine has {here}",
                f"install {what} {here} there, or {there} here",
            )


def _of_pair(
    where: str, other_name: str, result: PairProbeResult, limits: Thresholds
) -> Iterator[Finding]:
    if result.problem:
        yield Finding(
            where,
            f"cannot call it: {result.problem}",
            "open the port of its worker in firewalls between them",
        )
    if not result.resolved:
        yield Finding(
            where,
            f"the name {other_name} cannot be resolved there",
            "add it to the DNS or to /etc/hosts: programs that use names need it, Mesh does not",
        )
    if result.latency_s is not None and result.latency_s > limits.latency_s:
        yield Finding(
            where,
            f"a call takes {result.latency_s * 1e3:.1f} ms",
            "check the load of both hosts, and whether the path crosses another site",
        )


def _slow_links(
    pairs: dict[tuple[int, int], PairProbeResult], limits: Thresholds
) -> Iterator[Finding]:
    speeds = {pair: one.bytes_per_s for pair, one in pairs.items() if one.bytes_per_s is not None}
    if len(speeds) < 3:
        return  # There are too few links for a comparison.
    usual = median(speeds.values())
    for (one, other), speed in sorted(speeds.items()):
        if speed < usual * limits.slow_link:
            yield Finding(
                f"host {one} to host {other}",
                f"{speed / 1e6:.0f} MB/s, but {usual / 1e6:.0f} MB/s are typical of the mesh",
                "check its cable, its switch port, and other traffic",
            )
