"""Tracebacks as text, limited in length and without the frames of Mesh."""

from __future__ import annotations

from os.path import dirname, sep
from traceback import TracebackException

from mesh_core._errors import MeshError

__all__ = ["TEXT_LEN_MAX", "format_user_traceback", "shorten"]

TEXT_LEN_MAX = 65_536
"""Maximum length, in characters, of a message or traceback that is stored as text."""

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
