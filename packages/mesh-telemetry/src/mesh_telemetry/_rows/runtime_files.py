"""Source files of Python, Mesh and telemetry, as opposed to files of the program."""

from __future__ import annotations

import re

__all__ = ["is_runtime_file"]

# In any installation.
_PATHS = re.compile(
    r"^<frozen |/lib/python3\.\d+/(?!site-packages/|dist-packages/)|/mesh_core/|/mesh_telemetry/"
)


def is_runtime_file(path: str) -> bool:
    """Return whether a source file belongs to Python, Mesh or telemetry.

    Example:
        >>> is_runtime_file("/usr/lib/python3.11/threading.py")
        True
    """
    return _PATHS.search(path) is not None
