"""Examines the hosts of a mesh, each pair of them, and says what to mend."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from mesh_core import MeshError
from mesh_jobs._diagnostics.probe import Examiner, HostFacts, PairFacts, core_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mesh_core import HostMesh

__all__ = ["Diagnosis", "Finding", "Thresholds", "examine", "rounds"]

_CLOCK_ASKED = 5


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on something is worth a word."""

    clock_s: float = 1.0
    """Certificates and logs suffer when clocks differ by more."""
    latency_s: float = 0.01
    slow_link: float = 0.25
    """A link that has less than this part of the usual bandwidth of the mesh."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, and what to do about it."""

    where: str
    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found in one mesh."""

    mesh: str
    hosts: tuple[HostFacts, ...]
    clock_ahead_s: tuple[float, ...]
    """How far the clock of each host is ahead of the one here."""
    pairs: dict[tuple[int, int], PairFacts]
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """Gives plain values."""
        return {
            "mesh": self.mesh,
            "hosts": [
                {**asdict(facts), "clock_ahead_s": ahead}
                for facts, ahead in zip(self.hosts, self.clock_ahead_s, strict=True)
            ],
            "pairs": [
                {"from": one, "to": other, **asdict(facts)}
                for (one, other), facts in self.pairs.items()
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
    """Has each host describe itself and call each other one.

    Args:
        name: What the mesh is called.
        host_mesh: The hosts.
        payload_len: How many bytes are sent from each to each; 0 measures no bandwidth.
        limits: From where on something is worth a word.
        progress: Is called with how many rounds are done, and how many there are.

    Raises:
        MeshError: A host is lost.
    """
    procs = host_mesh.spawn_procs(name="doctor")
    try:
        examiners = procs.spawn("examiners", Examiner)
        members = (
            [examiners] if len(examiners) == 1 else [examiners[at] for at in range(len(procs))]
        )
        hosts = tuple(examiners.facts.call().get().values())
        ahead = tuple(_clock_ahead(member) for member in members)
        pairs: dict[tuple[int, int], PairFacts] = {}
        plan = list(rounds(len(members)))
        for done, meetings in enumerate(plan):
            progress(done, len(plan))
            # Those of a round do not share a host, so none slows another's link down.
            calls = {
                (one, other): members[one].examine.call_one(
                    members[other], hosts[other].name, payload_len
                )
                for one, other in meetings
            }
            for pair, call in calls.items():
                pairs[pair] = _outcome(call)
    finally:
        procs.stop().exception()
    found = tuple(_findings(hosts, ahead, pairs, limits or Thresholds()))
    return Diagnosis(name, hosts, ahead, dict(sorted(pairs.items())), found)


def rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """Gives all ordered pairs, in rounds in which nobody is met twice."""
    # As chess players do: all sit in a circle but one, and move on by one chair.
    chairs: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    for _ in range(len(chairs) - 1):
        half = len(chairs) // 2
        facing = zip(chairs[:half], reversed(chairs[half:]), strict=True)
        meetings = [(a, b) for a, b in facing if a is not None and b is not None]
        if meetings:
            yield meetings
            yield [(b, a) for a, b in meetings]
        chairs = [chairs[0], chairs[-1], *chairs[1:-1]]


def _outcome(call: Any) -> PairFacts:
    try:
        facts: PairFacts = call.get()
    except MeshError as error:
        return PairFacts((), problem=str(error).partition("\n")[0])
    return facts


def _clock_ahead(member: Examiner) -> float:
    """Compares clocks; the quickest answer says most."""
    best = (float("inf"), 0.0)
    for _ in range(_CLOCK_ASKED):
        began = time.time()
        there = member.clock.call_one().get()
        took_s = time.time() - began
        best = min(best, (took_s, there - (began + took_s / 2)))
    return best[1]


def _findings(
    hosts: Sequence[HostFacts],
    ahead: Sequence[float],
    pairs: dict[tuple[int, int], PairFacts],
    limits: Thresholds,
) -> Iterator[Finding]:
    for at, host in enumerate(hosts):
        yield from _of_host(at, host)
    for (one, other), facts in sorted(pairs.items()):
        where = f"host {one} to host {other}"
        difference_s = ahead[other] - ahead[one]
        # Once for both directions, by the one that is behind.
        if difference_s > limits.clock_s:
            yield Finding(
                where,
                f"the clock of {hosts[other].name} is {difference_s:.1f} s ahead",
                f"set the clocks of {hosts[one].name} and {hosts[other].name}, by NTP say",
            )
        yield from _of_pair(where, hosts[other].name, facts, limits)
    yield from _slow_links(pairs, limits)


def _of_host(at: int, facts: HostFacts) -> Iterator[Finding]:
    ours = {"Python": platform.python_version(), "mesh-core": core_version()}
    theirs = {"Python": facts.python, "mesh-core": facts.mesh}
    for what, there in theirs.items():
        here = ours[what]
        if there.split(".")[:2] != here.split(".")[:2]:
            yield Finding(
                f"host {at}",
                f"{facts.name} has {what} {there}, and {here} is here",
                f"install {what} {here} there, or {there} here",
            )


def _of_pair(
    where: str, other_name: str, facts: PairFacts, limits: Thresholds
) -> Iterator[Finding]:
    if facts.problem:
        yield Finding(
            where,
            f"cannot call it: {facts.problem}",
            "open the port of its worker in firewalls between them",
        )
    if not facts.resolved:
        yield Finding(
            where,
            f"the name {other_name} is not known there",
            "add it to the DNS or to /etc/hosts: programs that use names need it, Mesh does not",
        )
    if facts.latency_s is not None and facts.latency_s > limits.latency_s:
        yield Finding(
            where,
            f"a call takes {facts.latency_s * 1e3:.1f} ms",
            "look for load on either, or a path through another site",
        )


def _slow_links(pairs: dict[tuple[int, int], PairFacts], limits: Thresholds) -> Iterator[Finding]:
    speeds = {pair: one.bytes_per_s for pair, one in pairs.items() if one.bytes_per_s is not None}
    if len(speeds) < 3:
        return  # Nothing to compare with.
    usual = median(speeds.values())
    for (one, other), speed in sorted(speeds.items()):
        if speed < usual * limits.slow_link:
            yield Finding(
                f"host {one} to host {other}",
                f"{speed / 1e6:.0f} MB/s, where {usual / 1e6:.0f} MB/s are usual in the mesh",
                "look at its cable, its port of the switch, and other traffic",
            )
