"""The last lines of a log file."""

from __future__ import annotations

from pathlib import Path

__all__ = ["tail"]

_LINE_LEN = 400


def tail(path: Path, lines: int) -> str:
    """Return the last lines of a file without reading all of it.

    Args:
        path: The file; if it does not exist, the result is empty.
        lines: The maximum number of lines.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - lines * _LINE_LEN, 0))
            content = file.read()
    except FileNotFoundError:
        return ""
    return "\n".join(content.decode(errors="replace").splitlines()[-lines:])
