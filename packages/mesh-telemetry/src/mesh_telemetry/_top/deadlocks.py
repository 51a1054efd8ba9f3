"""Detection of deadlocks among waiting actors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["deadlocks"]


def deadlocks(waits: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Find cycles among pairs of a waiting and an awaited actor; no actor is in two of the results.

    Example:
        >>> deadlocks([(1, 2), (2, 1), (3, 1), (4, 4)])
        [[1, 2], [4]]
    """
    awaited_by_waiting: dict[int, list[int]] = {}
    for waiting, awaited in waits:
        awaited_by_waiting.setdefault(waiting, []).append(awaited)
    found = []
    done: set[int] = set()
    for start in sorted(awaited_by_waiting):
        if start in done:
            continue
        # The depth-first search avoids recursion, because a chain may contain all actors.
        path, at, branches = [start], {start: 0}, [iter(awaited_by_waiting[start])]
        while branches:
            next_actor = next(branches[-1], None)
            if next_actor is None:
                branches.pop()
                left = path.pop()
                del at[left]
                done.add(left)
            elif next_actor in at:
                cycle = path[at[next_actor] :]
                if not done & set(cycle):
                    found.append(cycle)
                    done.update(cycle)
            elif next_actor not in done and next_actor in awaited_by_waiting:
                at[next_actor] = len(path)
                path.append(next_actor)
                branches.append(iter(awaited_by_waiting[next_actor]))
            else:
                done.add(next_actor)
    return found
