"""Tracebacks as text, limited in length and without the frames of Mesh."""

from __future__ import annotations

import re
import sys
from os.path import dirname, sep
from traceback import TracebackException

from mesh_core._errors import MeshError

__all__ = ["TEXT_LEN_MAX", "add_source_lines", "format_user_traceback", "shorten"]

TEXT_LEN_MAX = 65_536
"""Maximum length, in characters, of a message or traceback that is stored as text."""

# A frame without its source line.
_BARE_FRAME = re.compile(r'^(  File "([^"\n]+)", line (\d+), in [^\n]*\n)(?!    )', re.MULTILINE)
_OUR_FILES = dirname(dirname(__file__)) + sep


def format_user_traceback(exception: BaseException) -> str:
    """Format an exception and its causes without the frames of Mesh.

    If the traceback has no other frames, the frames of Mesh are kept: the error is then a bug in
    Mesh, and the user needs them to report it. The text is empty for an error that Mesh has raised
    deliberately, whose message is all that the user needs.
    """
    try:
        if isinstance(exception, MeshError) and not _has_user_frames(exception):
            return ""
        text = TracebackException(
            type(exception), exception, exception.__traceback__, lookup_lines=False
        )
        _leave_out_ours(text, set())
        return shorten("".join(text.format()))
    except Exception as error:
        # A user's class can make any step fail through its module, its name or its attributes.
        return f"{type.__repr__(type(exception))} (no traceback: {type(error).__qualname__})"


def add_source_lines(text: str) -> str:
    """Add the source lines that only this process knows to a traceback of another process.

    These are the lines of cells of a notebook and of the prompt, which are in no file.
    """
    linecache = sys.modules.get("linecache")
    if linecache is None:
        return text

    def with_source(frame: re.Match[str]) -> str:
        lines = linecache.cache.get(frame[2])
        # An entry with one element has not been read yet; it belongs to a file.
        if lines is None or len(lines) == 1 or not 0 < int(frame[3]) <= len(lines[2]):
            return frame[1]
        source = lines[2][int(frame[3]) - 1].strip()
        return f"{frame[1]}    {source}\n" if source else frame[1]

    return _BARE_FRAME.sub(with_source, text)


def _has_user_frames(exception: BaseException) -> bool:
    traceback = exception.__traceback__
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_OUR_FILES):
            return True
        traceback = traceback.tb_next
    linked = exception.__cause__ or exception.__context__
    return linked is not None and not exception.__suppress_context__


def shorten(text: str, len_max: int = TEXT_LEN_MAX) -> str:
    """Cut the middle out of a text that is too long, and insert how many characters are missing."""
    if len(text) <= len_max:
        return text
    head, tail = len_max // 4, len_max - len_max // 4
    return f"{text[:head]}\n... {len(text) - len_max:,} characters omitted ...\n{text[-tail:]}"


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
