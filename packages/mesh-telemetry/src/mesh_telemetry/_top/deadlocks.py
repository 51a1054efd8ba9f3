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
    ahead: dict[int, list[int]] = {}
    for waiting, awaited in waits:
        ahead.setdefault(waiting, []).append(awaited)
    found = []
    done: set[int] = set()
    for start in sorted(ahead):
        if start in done:
            continue
        # The depth-first search avoids recursion, because a chain may contain all actors.
        path, at, branches = [start], {start: 0}, [iter(ahead[start])]
        while branches:
            nearest = next(branches[-1], None)
            if nearest is None:
                branches.pop()
                left = path.pop()
                del at[left]
                done.add(left)
            elif nearest in at:
                cycle = path[at[nearest] :]
                if not done & set(cycle):
                    found.append(cycle)
                    done.update(cycle)
            elif nearest not in done and nearest in ahead:
                at[nearest] = len(path)
                path.append(nearest)
                branches.append(iter(ahead[nearest]))
            else:
                done.add(nearest)
    return found
