"""The step from which all ranks continue after a failure, and the copies that they load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = ["Copy", "RestorePlan", "plan_restore"]


@dataclass(frozen=True)
class Copy:
    """A checkpoint in the memory of a process."""

    member: int
    """The number of the member whose state it is."""
    holder: int
    """The number of the member in whose process it is."""
    step: int


@dataclass(frozen=True)
class RestorePlan:
    """A step, and the copies from which each rank can load its state, preferred ones first."""

    step: int
    candidates: tuple[tuple[Copy, ...], ...]


def plan_restore(
    copies: Iterable[Copy],
    members: Sequence[int],
    *,
    is_sharded: bool,
    damaged: Collection[Copy] = (),
) -> RestorePlan | None:
    """Choose the latest step for which every rank can load its state.

    Args:
        copies: All checkpoints in memory.
        members: The numbers of the members, by rank.
        is_sharded: Whether each rank has a different state. Otherwise all states are equal, and
            each rank can load any of them.
        damaged: Copies that cannot be loaded.

    Returns:
        The plan; None if there is no such step.
    """
    usable = [copy for copy in copies if copy not in damaged]
    for step in sorted({copy.step for copy in usable}, reverse=True):
        of_step = [copy for copy in usable if copy.step == step]
        candidates = tuple(
            _candidates(of_step, member, members[0], is_sharded=is_sharded) for member in members
        )
        if all(candidates):
            return RestorePlan(step, candidates)
    return None


def _candidates(
    copies: list[Copy], member: int, first: int, *, is_sharded: bool
) -> tuple[Copy, ...]:
    """Return the copies that a member can load: first its own, then the copies that others hold.

    Args:
        copies: The copies of one step.
        member: The member.
        first: The member with rank 0.
        is_sharded: Whether each member has a different state.
    """
    fitting = [copy for copy in copies if not is_sharded or copy.member == member]
    # At the beginning, models are initialized differently: all ranks load the state of rank 0.
    own = first if copies and copies[0].step == 0 and not is_sharded else member
    order: Mapping[Copy, tuple[bool, bool]] = {
        copy: (copy.member != own, copy.holder != own) for copy in fitting
    }
    return tuple(sorted(fitting, key=order.__getitem__))
