"""The file in the folder of a process that names endpoints, whose numbers its records have."""

from __future__ import annotations

import json
from pathlib import Path

from mesh_telemetry._events.moving import write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ENDPOINTS", "read_endpoints", "write_endpoints"]

#: The name of the file.
ENDPOINTS = "endpoints"


def write_endpoints(folder: Path, names: Sequence[str]) -> None:
    """Writes down all names, by number; to be done before the records that have the numbers.

    Raises:
        OSError: It cannot be written; those that were there still are.
    """
    write_whole(folder / ENDPOINTS, json.dumps(names))


def read_endpoints(folder: Path) -> list[str]:
    """Gives the names by number; none when there are none."""
    try:
        names: list[str] = json.loads((folder / ENDPOINTS).read_text())
    except (OSError, ValueError):
        return []
    return names
