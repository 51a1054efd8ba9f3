"""Which host fetches from which: a tree, so that each byte leaves the client once."""

from __future__ import annotations

__all__ = ["nearest_first"]

#: How many hosts fetch from one.
_WIDTH = 2


def nearest_first(rank: int, width: int = _WIDTH) -> list[int]:
    """Gives the hosts above a host; behind the last of them there is the client alone.

    A host that loses the one above goes on with the next: so it fetches from the client only when
    all above it are gone.
    """
    above = []
    while rank > 0:
        rank = (rank - 1) // width
        above.append(rank)
    return above
