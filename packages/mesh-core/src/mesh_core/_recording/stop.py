"""How a recording stops that cannot be continued, usually because its disk is full."""

from __future__ import annotations

import errno
import logging

from mesh_core._recording.actor_recording import STOPPED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mesh_core._recording.log import LoggedEntry

__all__ = ["stop_cause", "warn_not_recorded", "warn_stopped"]

# A quota or a limit for the size of files is not the disk, but has the same remedy.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REMEDY = (
    "free space there, set TMPDIR to a directory on another disk, or set a smaller record_bytes_max"
)

_logger = logging.getLogger(__name__)


def warn_stopped(folder: Path, cause: str) -> None:
    """Log that the recording of this process has stopped."""
    _logger.warning(
        "the actors of this process are no longer recorded, because their log in %s could not be "
        "continued: %s: %s, and start the process again; what was recorded before remains",
        folder, cause, _REMEDY,
    )  # fmt: skip


def warn_not_recorded(folder: Path, error: OSError) -> None:
    """Log that the recording of this process could not be started."""
    _logger.warning(
        "the actors of this process are not recorded, because their log in %s could not be "
        "created: %s: %s",
        folder, error, _REMEDY,
    )  # fmt: skip


def stop_cause(entries: Sequence[LoggedEntry]) -> str | None:
    """Return why a log could not be continued, as the end of a sentence; None if it was."""
    found = next((one for one in reversed(entries) if one.kind == STOPPED), None)
    if found is None:
        return None
    if found.first in _FULL:
        return "because the disk was full"
    cause = found.fields.decode(errors="replace")
    return f"because its log could not be continued: {cause}"
