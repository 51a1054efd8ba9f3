"""The tree along which one buffer goes to many: over hosts first, then on each host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["chunk_len", "fan_out", "parents"]

#: What the rule for the fan-out takes for granted: what a host sends in a second, and how long it
#: takes from a chunk's arrival until the next host asks for it.
_BYTES_PER_S = 1.5e9
_HOP_S = 0.0005
_CHUNKS = 32
_CHUNK_LEN_MIN, _CHUNK_LEN_MAX = 256 << 10, 8 << 20


def chunk_len(nbytes: int) -> int:
    """Gives how much a host takes before those behind it may have it, in whole pages."""
    length = min(max(nbytes // _CHUNKS, _CHUNK_LEN_MIN), _CHUNK_LEN_MAX)
    return -(-length // 4096) * 4096


def fan_out(hosts: int, nbytes: int) -> int:
    """Gives to how many hosts each should send: as many as make the last one done soonest.

    Each of k children gets a k-th of what a host can send, so long buffers go along a chain; each
    level costs one chunk and a question, so short ones go to all at once.
    """
    chunk = min(chunk_len(nbytes), nbytes)

    def seconds(width: int) -> float:
        depth, reached, level = 0, 0, 1
        while reached < hosts:
            level *= width
            reached += level
            depth += 1
        per_level = width * chunk / _BYTES_PER_S + _HOP_S
        return width * nbytes / _BYTES_PER_S + (depth - 1) * per_level

    return min(range(1, max(hosts, 1) + 1), key=seconds)


def parents(
    machines: Sequence[Hashable], source: Hashable, nbytes: int, width: int | None = None
) -> list[int | None]:
    """Gives whom each destination copies from: another one, or the source.

    Args:
        machines: The machine of each destination.
        source: That of the source.
        nbytes: How long the buffer is.
        width: To how many hosts each sends; the best number if left out.
    """
    heads: dict[Hashable, int] = {}
    for place, machine in enumerate(machines):
        if machine != source:
            heads.setdefault(machine, place)
    order = list(heads.values())
    width = fan_out(len(order), nbytes) if width is None else width
    found: list[int | None] = []
    rank = {place: number for number, place in enumerate(order, 1)}
    for place, machine in enumerate(machines):
        if machine == source:
            found.append(None)
        elif heads[machine] != place:
            found.append(heads[machine])
        else:
            above = (rank[place] - 1) // width
            found.append(order[above - 1] if above else None)
    return found
