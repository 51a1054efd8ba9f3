"""Versions whose content identifies the version at every position.

Each word of a version is its stamp combined with its position. The stamp can be computed from the
word, so a block of another version is identified when it is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    Words = np.ndarray[Any, np.dtype[np.uint64]]
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

__all__ = ["LEN_MAX", "Stamp", "fill", "tear_in"]

LEN_MAX = 64 << 20
_WORD = 8
# The amount that is filled or compared at a time, which fits into the cache.
_PIECE_LEN = 256 << 10
_ODD = 0x9E3779B97F4A7C15
_ALL = (1 << 64) - 1
_BACK = pow(_ODD, -1, 1 << 64)
_STEP_BITS = 40
# The mask of each word position; processes that are forked from this one share its pages.
_PLACES = np.arange(LEN_MAX // _WORD + 1, dtype=np.uint64) * np.uint64(_ODD)


@dataclass(frozen=True)
class Stamp:
    """Identifies one attempt to write a version.

    Attributes:
        life: The number of the writer, in the sequence of writers.
        step: The number of the version.
        is_given_up: Whether the version is not to be published.
    """

    life: int
    step: int
    is_given_up: bool = False

    @property
    def word(self) -> np.uint64:
        """The value that is combined with each word."""
        number = (self.life + 1) << _STEP_BITS | self.step << 1 | int(self.is_given_up)
        return np.uint64(number * _ODD & _ALL)

    @classmethod
    def of(cls, word: int) -> Stamp:
        """Return the stamp that a word was computed from."""
        number = word * _BACK & _ALL
        step = (number & ((1 << _STEP_BITS) - 1)) >> 1
        return cls((number >> _STEP_BITS) - 1, step, bool(number & 1))


def fill(memory: memoryview, stamp: Stamp, start: int, stop: int) -> None:
    """Write bytes `start:stop` of a version to the same positions of the memory."""
    destination = np.frombuffer(memory, np.uint8)
    for place, wanted in _pieces(stamp, start, stop):
        destination[place : place + len(wanted)] = wanted


def tear_in(found: Bytes, stamp: Stamp, start: int) -> str | None:
    """Describe where bytes beginning at `start` differ from the version; None if they do not."""
    for place, wanted in _pieces(stamp, start, start + len(found)):
        piece = found[place - start : place - start + len(wanted)]
        if np.array_equal(piece, wanted):
            continue
        first = place + int(np.argmax(piece != wanted))
        return f"bytes from {first} on are not of {stamp}, but of {_stamp_at(found, first, start)}"
    return None


def _pieces(stamp: Stamp, start: int, stop: int) -> Iterator[tuple[int, Bytes]]:
    """Yield the bytes in pieces, with their positions; each piece is valid until the next one."""
    buffer = np.empty(_PIECE_LEN // _WORD, np.uint64)
    place = start
    while place < stop:
        first = place // _WORD
        end = min(stop, (first * _WORD) + _PIECE_LEN)
        words = buffer[: -(-end // _WORD) - first]
        np.bitwise_xor(_PLACES[first : first + len(words)], stamp.word, out=words)
        skipped = place - first * _WORD
        yield place, words.view(np.uint8)[skipped : skipped + end - place]
        place = end


def _stamp_at(found: Bytes, place: int, start: int) -> Stamp | str:
    """Return the stamp of the first whole word after a position."""
    index = -(-place // _WORD)
    word = found[index * _WORD - start :][:_WORD].tobytes()
    if len(word) < _WORD:
        return "something else"
    return Stamp.of(int.from_bytes(word, "little") ^ int(_PLACES[index]))
