"""Warnings about exceptions of calls whose futures were dropped without being read."""

from __future__ import annotations

from mesh_core._logging.python_logging import warn
from mesh_core._serialization.remote_error import decode_exception

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._core import Message

__all__ = ["warn_of_unread"]

_WARNINGS_MAX = 100
_warned: set[str] = set()


def warn_of_unread(message: Message) -> None:
    """Warn about an unread exception, once for each traceback."""
    error = decode_exception(message.body)
    traceback = error.exception_formatted
    if traceback in _warned or len(_warned) >= _WARNINGS_MAX:
        return
    _warned.add(traceback)
    warn(
        "a call has raised an exception that nobody has seen, because its future was dropped: use "
        f"get() or await, or handle the exception in the endpoint\n{traceback}"
    )
