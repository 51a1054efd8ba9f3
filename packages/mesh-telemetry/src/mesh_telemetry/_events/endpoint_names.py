"""The file in the folder of a process that maps the endpoint numbers of its records to names."""

from __future__ import annotations

import json
from pathlib import Path

from mesh_telemetry._events.segment_export import write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ENDPOINTS", "read_endpoints", "write_endpoints"]

#: The name of the file.
ENDPOINTS = "endpoints"


def write_endpoints(folder: Path, names: Sequence[str]) -> None:
    """Write all endpoint names, ordered by number.

    Must be called before records that contain the numbers are written.

    Raises:
        OSError: The file cannot be written; the previous version remains.
    """
    write_atomically(folder / ENDPOINTS, json.dumps(names))


def read_endpoints(folder: Path) -> list[str]:
    """Return the endpoint names by number, or an empty list without a file."""
    try:
        names: list[str] = json.loads((folder / ENDPOINTS).read_text())
    except (OSError, ValueError):
        return []
    return names
