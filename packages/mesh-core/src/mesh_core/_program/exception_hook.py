"""Hides the frames of Mesh in the tracebacks of uncaught exceptions.

The frames are hidden only while the traceback is printed: the exception keeps all of them, and a
debugger shows them. They are also printed if the setting `full_tracebacks` is on, or if the
exception indicates a defect of Mesh.
"""

from __future__ import annotations

import sys

from mesh_core._configuration.config import effective
from mesh_core._errors import ConfigError, MeshError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

__all__ = ["hidden_frames", "register"]

_PACKAGES = frozenset(
    {"mesh_core", "mesh_fs", "mesh_jobs", "mesh_rdma", "mesh_telemetry", "mesh_tensor"}
)
_LINKED_LEN_MAX = 64


def register() -> None:
    """Let the exceptions that end this program be printed without the frames of Mesh."""
    previous: Hook = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if _is_full():
            previous(kind, error, traceback)
            return
        with hidden_frames(error):
            previous(kind, error, error.__traceback__)

    sys.excepthook = hook


class hidden_frames:
    """Removes the frames of Mesh from an exception, and from those linked to it, in a block."""

    def __init__(self, error: BaseException) -> None:
        self._originals = [(one, one.__traceback__) for one in _linked(error)]

    def __enter__(self) -> None:
        for position, (error, traceback) in enumerate(self._originals):
            shown = _without_ours(error, traceback)
            if shown is not None or position:
                error.__traceback__ = shown

    def __exit__(self, *_: object) -> None:
        for error, traceback in self._originals:
            error.__traceback__ = traceback


def _is_full() -> bool:
    try:
        return effective().full_tracebacks
    except ConfigError:
        return False


def _linked(error: BaseException) -> list[BaseException]:
    """Return an exception and all exceptions that are printed together with it."""
    found = [error]
    for one in found:  # the list grows during the iteration
        linked = [one.__cause__, None if one.__suppress_context__ else one.__context__]
        members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        for other in (*linked, *members):
            if other is not None and all(other is not known for known in found):
                found.append(other)
        if len(found) >= _LINKED_LEN_MAX:
            break
    return found


def _without_ours(error: BaseException, traceback: TracebackType | None) -> TracebackType | None:
    """Return a copy of a traceback without the frames of Mesh."""
    steps = list(_steps(traceback))
    if not steps or (_is_ours(steps[-1]) and not _is_deliberate(error, steps[-1])):
        return traceback
    shown: TracebackType | None = None
    for step in reversed(steps):
        if not _is_ours(step):
            shown = type(step)(shown, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return shown


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_ours(step: TracebackType) -> bool:
    name = step.tb_frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] in _PACKAGES


def _is_deliberate(error: BaseException, step: TracebackType) -> bool:
    """Return whether Mesh raised an exception by a statement, or passes on an interruption.

    Any other exception in its code indicates a defect, whose report needs all frames.
    """
    if isinstance(error, MeshError) or not isinstance(error, Exception):
        return True
    if isinstance(error, AssertionError):
        return False
    # Few programs end with such an exception.
    from opcode import opmap  # noqa: PLC0415

    return step.tb_frame.f_code.co_code[step.tb_lasti] == opmap["RAISE_VARARGS"]
