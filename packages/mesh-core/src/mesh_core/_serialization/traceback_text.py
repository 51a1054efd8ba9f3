"""A traceback as its reader wants it: their own frames, not ours, and never without end."""

from __future__ import annotations

from os.path import dirname, sep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceback import TracebackException

__all__ = ["TEXT_LEN_MAX", "format_user_traceback", "shorten"]

TEXT_LEN_MAX = 65_536
"""The most characters of a message or traceback that are kept as text."""

_OUR_FILES = dirname(__file__) + sep


def format_user_traceback(exception: BaseException) -> str:
    """Formats an exception with its causes, leaving out the frames of Mesh itself.

    Frames of ours stay when there are no others: the fault then is ours, for the reader to report.
    """
    # Of the two imports that a failure needs this is the dear one; nothing else in here wants it.
    from traceback import TracebackException

    try:
        text = TracebackException(
            type(exception), exception, exception.__traceback__, lookup_lines=False
        )
        _leave_out_ours(text, set())
        return shorten("".join(text.format()))
    except Exception as error:
        # A user's class can break any step of this: its module, its name, its attributes.
        return f"{type.__repr__(type(exception))} (no traceback: {type(error).__qualname__})"


def shorten(text: str, len_max: int = TEXT_LEN_MAX) -> str:
    """Cuts the middle out of a text that is too long, and says how much is missing."""
    if len(text) <= len_max:
        return text
    head, tail = len_max // 4, len_max - len_max // 4
    return f"{text[:head]}\n... {len(text) - len_max:,} characters left out ...\n{text[-tail:]}"


def _leave_out_ours(text: TracebackException, seen: set[int]) -> None:
    if id(text) in seen:
        return
    seen.add(id(text))
    theirs = [frame for frame in text.stack if not frame.filename.startswith(_OUR_FILES)]
    if theirs:
        text.stack[:] = theirs
    for linked in (text.__cause__, text.__context__, *(text.exceptions or ())):
        if linked is not None:
            _leave_out_ours(linked, seen)
