"""Where the program issued an operation: noted raw, put into words only when something failed."""

from __future__ import annotations

import linecache
import os
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType

__all__ = ["Place", "TracePlace", "line_of", "place_here", "words_of"]

#: A few frames, innermost first: of each the code, and behind it the instruction in it.
Place = tuple[Any, ...]

#: How long it is at most: twice as many frames of the program are kept.
_LENGTH_MAX = 12
#: How many places are remembered.
_KNOWN_MAX = 4096

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

#: Whether a file is of the program's own, by name; looked up far more often than it grows.
_is_own: dict[str, bool] = {}

#: By the innermost instruction, the place that was noted there last.
_known: dict[int, Place] = {}


class TracePlace(tuple[Any, ...]):
    """Where a trace is replayed.

    Attributes:
        recorded: Where each of its operations was issued when it was recorded.
    """

    recorded: Sequence[Place]

    @classmethod
    def here(cls, recorded: Sequence[Place]) -> TracePlace:
        """Notes who calls."""
        made = cls(place_here())
        made.recorded = recorded
        return made


def place_here() -> Place:
    """Notes who calls, leaving out what is of torch and of this package."""
    frame: FrameType | None = sys._getframe(2)
    found: list[Any] = []
    while frame is not None:
        code = frame.f_code
        own = _is_own.get(code.co_filename)
        if own is None:
            name = code.co_filename
            own = _is_own[name] = not name.startswith((_OURS, _TORCH, "<frozen", "<string>"))
        if own:
            found.append(code)
            found.append(frame.f_lasti)
            if len(found) == _LENGTH_MAX:
                break
        frame = frame.f_back
    place = tuple(found)
    if not place:
        return place
    # Loops come to the same places again and again: each is kept but once.
    innermost = place[1]
    known = _known.get(innermost)
    if known == place:
        return known
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known[innermost] = place
    return place


def words_of(place: Place, within: int | None = None) -> str:
    """Says it as a traceback does, outermost call first.

    Args:
        place: Where.
        within: Which operation of a trace, if it is one that was replayed there.
    """
    if isinstance(place, TracePlace):
        here = f"replayed here:\n{_lines_of(place)}"
        return here if within is None else f"{words_of(place.recorded[within])}\n{here}"
    return _lines_of(place)


def _lines_of(place: Place) -> str:
    lines = []
    frames = list(zip(place[::2], place[1::2], strict=True))
    for code, instruction in reversed(frames):
        number = line_of(code, instruction)
        lines.append(f'  File "{code.co_filename}", line {number}, in {code.co_qualname}')
        text = linecache.getline(code.co_filename, number).strip()
        if text:
            lines.append(f"    {text}")
    return "\n".join(lines) or "  (outside of the program)"


def line_of(code: CodeType, instruction: int) -> int:
    """Gives the line of an instruction."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
