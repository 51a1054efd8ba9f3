"""Lists of chunk names in messages: 32 bytes each, concatenated."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["NAME_BYTES", "joined", "parts", "split"]

NAME_BYTES = 32


def split(names: bytes) -> list[bytes]:
    """Return the individual names."""
    return [names[at : at + NAME_BYTES] for at in range(0, len(names), NAME_BYTES)]


def joined(names: Iterable[bytes]) -> bytes:
    """Concatenate names."""
    return b"".join(names)


def parts(names: bytes, count_max: int) -> Iterator[bytes]:
    """Split a long list into shorter ones of at most `count_max` names."""
    step = NAME_BYTES * count_max
    return (names[at : at + step] for at in range(0, len(names), step))
