"""Source locations of operations: recorded in raw form, and formatted only after a failure."""

from __future__ import annotations

import linecache
import os
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType

__all__ = ["CallSite", "TraceCallSite", "capture_call_site", "format_call_site", "line_of"]

#: A few frames, innermost first. Each frame takes two elements: the code object and the offset of
#: the instruction.
CallSite = tuple[Any, ...]

#: The maximum length of a `CallSite`: twice the number of frames of the program that are kept.
_LENGTH_MAX = 12
#: The maximum number of interned call sites.
_KNOWN_MAX = 4096

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

#: Whether a file belongs to the program, by file name. It is read far more often than extended.
_is_own: dict[str, bool] = {}

#: The call site that was recorded last, by the offset of its innermost instruction.
_known: dict[int, CallSite] = {}


class TraceCallSite(tuple[Any, ...]):
    """The call site where a trace is replayed.

    Attributes:
        recorded: The call site of each operation of the trace at the time of recording.
    """

    recorded: Sequence[CallSite]

    @classmethod
    def here(cls, recorded: Sequence[CallSite]) -> TraceCallSite:
        """Record the caller's call site."""
        made = cls(capture_call_site())
        made.recorded = recorded
        return made


def capture_call_site() -> CallSite:
    """Record the caller's call site, without the frames of PyTorch and this package."""
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
    call_site = tuple(found)
    if not call_site:
        return call_site
    # Loops produce the same call site repeatedly: each call site is kept only once.
    innermost = call_site[1]
    known = _known.get(innermost)
    if known == call_site:
        return known
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known[innermost] = call_site
    return call_site


def format_call_site(call_site: CallSite, within: int | None = None) -> str:
    """Format a call site like a traceback, outermost call first.

    Args:
        call_site: The call site.
        within: The index of the operation within the trace, if the call site is one where a trace
            was replayed.
    """
    if isinstance(call_site, TraceCallSite):
        here = f"replayed here:\n{_lines_of(call_site)}"
        return here if within is None else f"{format_call_site(call_site.recorded[within])}\n{here}"
    return _lines_of(call_site)


def _lines_of(call_site: CallSite) -> str:
    lines = []
    frames = list(zip(call_site[::2], call_site[1::2], strict=True))
    for code, instruction in reversed(frames):
        number = line_of(code, instruction)
        lines.append(f'  File "{code.co_filename}", line {number}, in {code.co_qualname}')
        text = linecache.getline(code.co_filename, number).strip()
        if text:
            lines.append(f"    {text}")
    return "\n".join(lines) or "  (outside of the program)"


def line_of(code: CodeType, instruction: int) -> int:
    """Return the source line of an instruction."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
