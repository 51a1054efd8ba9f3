"""The tree of `spread`: between hosts first, then from the first process of each host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["chunk_len", "fan_out", "parents"]

#: Assumptions of the fan-out rule: the bytes that a host sends per second, and the time from the
#: arrival of a chunk until the next host requests it.
_BYTES_PER_S = 1.5e9
_HOP_S = 0.0005
_CHUNKS = 32
_CHUNK_LEN_MIN, _CHUNK_LEN_MAX = 256 << 10, 8 << 20


def chunk_len(nbytes: int) -> int:
    """Return how many bytes a node receives before its children may read them, in whole pages."""
    length = min(max(nbytes // _CHUNKS, _CHUNK_LEN_MIN), _CHUNK_LEN_MAX)
    return -(-length // 4096) * 4096


def fan_out(hosts: int, nbytes: int) -> int:
    """Return the number of children per host that minimizes the time until the last host is done.

    Each of k children gets a k-th of the bandwidth of its parent, so long buffers are sent along a
    chain. Each level costs the time of one chunk and one request, so short buffers are sent to all
    hosts directly.
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
    """Return the parent of each destination: another destination, or None for the source.

    Args:
        machines: The machine of each destination.
        source: The machine of the source.
        nbytes: The length of the buffer, in bytes.
        width: The number of children per host; computed by `fan_out` by default.
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
