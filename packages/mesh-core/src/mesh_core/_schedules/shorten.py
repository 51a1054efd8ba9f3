"""Shortens a failing schedule: fewer messages from outside, and fewer changes between actors."""

from __future__ import annotations

from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._schedules.events import EventId
    from mesh_core._schedules.run import Run

    Attempt = Callable[[list[EventId], frozenset[int]], Run | None]

__all__ = ["shortened"]


def shortened(run: Run, attempt: Attempt, may_leave_out: Callable[[frozenset[int]], bool]) -> Run:
    """Return a shorter run that fails in the same way, or the run itself.

    Args:
        run: The run.
        attempt: Runs events in an order, without some inputs; returns the run if it fails in the
            same way, and None otherwise or when the time is over.
        may_leave_out: Whether some inputs can be left out without another cause of the failure.
    """
    run, without = _with_fewer_inputs(run, attempt, may_leave_out)
    return _with_fewer_changes(run, attempt, without)


def _with_fewer_inputs(
    run: Run, attempt: Attempt, may_leave_out: Callable[[frozenset[int]], bool]
) -> tuple[Run, frozenset[int]]:
    """Leave out inputs, in parts that become smaller."""
    without: frozenset[int] = frozenset()
    part = len(_inputs_of(run))
    while part:
        is_shorter = False
        inputs = _inputs_of(run)
        for start in range(0, len(inputs), part):
            fewer = without | frozenset(inputs[start : start + part])
            found = attempt(_identities(run), fewer)
            is_better = found is not None and len(found.events) < len(run.events)
            if found is not None and is_better and may_leave_out(fewer):
                run, without, is_shorter = found, fewer, True
        if not is_shorter or part > len(_inputs_of(run)):
            part //= 2
    return run, without


def _with_fewer_changes(run: Run, attempt: Attempt, without: frozenset[int]) -> Run:
    """Move events so that an actor does as much as possible before the next one does."""
    place = 0
    while place < len(run.events) - 1:
        identities = _identities(run)
        actor = run.events[place].actor.name
        later = [
            at for at in range(place + 2, len(identities)) if run.events[at].actor.name == actor
        ]
        if run.events[place + 1].actor.name != actor:
            for at in later[:1]:
                moved = identities[:at] + identities[at + 1 :]
                moved.insert(place + 1, identities[at])
                found = attempt(moved, without)
                if found is not None and _cost(found) < _cost(run):
                    run = found
        place += 1
    return run


def _cost(run: Run) -> tuple[int, int]:
    actors = [one.actor.name for one in run.events]
    changes = sum(one != other for one, other in pairwise(actors))
    return len(run.events), changes


def _identities(run: Run) -> list[EventId]:
    return [one.identity for one in run.events]


def _inputs_of(run: Run) -> list[int]:
    return [one.input.index for one in run.events if one.input is not None]
