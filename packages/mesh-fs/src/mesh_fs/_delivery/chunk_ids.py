"""Names of chunks, as they travel: 32 bytes each, one behind the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["NAME_BYTES", "joined", "parts", "split"]

NAME_BYTES = 32


def split(names: bytes) -> list[bytes]:
    """Gives the single names."""
    return [names[at : at + NAME_BYTES] for at in range(0, len(names), NAME_BYTES)]


def joined(names: Iterable[bytes]) -> bytes:
    """Puts them one behind the other."""
    return b"".join(names)


def parts(names: bytes, count_max: int) -> Iterator[bytes]:
    """Cuts a long list into shorter ones."""
    step = NAME_BYTES * count_max
    return (names[at : at + step] for at in range(0, len(names), step))
