"""A hang: the ranks that keep others waiting, their lines, and the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["HANG_KINDS", "Culprit", "Hang", "WaitingCollective"]

#: Why ranks keep others waiting.
HANG_KINDS: tuple[str, ...] = (
    "missing_call",
    "different_order",
    "shape_mismatch",
    "data_loader",
    "stopped",
    "deadlock",
    "blocked",
    "busy",
    "lost",
    "link",
)


class WaitingCollective(NamedTuple):
    """The collective in which ranks wait."""

    operation: str
    """Its name, such as `all_reduce`."""
    sequence: int
    """The number of earlier operations of the group."""
    group: str
    """The name of the process group."""
    world: str
    """The address of the store of its world."""
    ranks: tuple[int, ...]
    """The ranks that wait, as ranks of the world."""
    waited_s: float
    """How long the first of them has waited, in seconds."""
    where: str
    """The line that called it, as `file:line in function`."""


@dataclass(frozen=True)
class Culprit:
    """A rank that keeps others waiting.

    Attributes:
        rank: The rank in the world of the process group; in the mesh if the hang is a call.
        kind: One of the kinds of `Hang`.
        reason: A human-readable description of what the rank does instead.
        where: The line that it executes, as `file:line in function`; empty if it is not known.
        mesh: The name of its process mesh; empty if it is not recorded.
        proc: Its process, such as `1.3`; empty if it is not recorded.
        pid: Its process id; 0 if it is not recorded.
        host: The name of its machine.
        stack: Its stack, innermost call first, as lines of the form of `where`.
    """

    rank: int
    kind: str
    reason: str
    where: str = ""
    mesh: str = ""
    proc: str = ""
    pid: int = 0
    host: str = ""
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        of = f" of {self.mesh!r}" if self.mesh else ""
        place = ", ".join(
            text
            for text in (
                f"process {self.proc}" if self.proc else "",
                f"pid {self.pid}" if self.pid else "",
                f"host {self.host}" if self.host else "",
            )
            if text
        )
        at = f"\n    at {self.where}" if self.where else ""
        return f"rank {self.rank}{of}{f' ({place})' if place else ''} {self.reason}{at}"


@dataclass(frozen=True)
class Hang:
    """Ranks that wait for others, and the ranks that keep them waiting.

    Attributes:
        kind: `missing_call`, `different_order`, `shape_mismatch`, `data_loader`, `stopped`,
            `deadlock`, `blocked`, `busy`, `lost`, or `link` if all ranks have joined.
        collective: The collective in which ranks wait; None for a call of an actor.
        culprits: The ranks that keep the others waiting.
        is_certain: Whether the evidence shows that the culprits cannot continue.
    """

    kind: str
    collective: WaitingCollective | None
    culprits: tuple[Culprit, ...]
    is_certain: bool

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two observations of the same hang."""
        at = self.collective
        who = tuple((one.rank, one.proc) for one in self.culprits)
        return who, None if at is None else (at.world, at.group, at.sequence)

    def __str__(self) -> str:
        lines = [str(culprit) for culprit in self.culprits]
        at = self.collective
        if at is not None:
            ranks = ranges(at.ranks)
            verb = "waits" if len(at.ranks) == 1 else "wait"
            lines.append(
                f"rank {ranks} {verb} in {at.operation} #{at.sequence} of group {at.group!r} for "
                f"{at.waited_s:.1f} s\n    at {at.where}"
            )
        return "\n".join(lines)


def ranges(numbers: tuple[int, ...]) -> str:
    """Format numbers as ranges, such as `0-3, 7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
