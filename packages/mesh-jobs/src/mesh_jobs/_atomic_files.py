"""Files that are written whole or not at all, and read by their owner alone."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["check_owner", "private_folder", "read_json", "write_json", "write_private"]


def private_folder(path: Path) -> Path:
    """Makes a folder that only its owner can look into, and those above it where needed.

    Raises:
        OSError: The system refuses, or the folder exists and belongs to another user.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    check_owner(path)
    return path


def check_owner(path: Path) -> None:
    """Refuses what another user could change: a path or its target that belongs to that user.

    Raises:
        OSError: It belongs to another user, or does not exist.
    """
    for about in (path.lstat(), path.stat()):
        if about.st_uid != os.geteuid():
            raise PermissionError(
                errno.EACCES,
                f"belongs to user {about.st_uid}, and this is user {os.geteuid()}: use a folder "
                "of your own",
                str(path),
            )


def write_private(path: Path, content: bytes) -> None:
    """Writes a file for its owner alone: a reader finds all of it or what was there before.

    Raises:
        OSError: The system refuses.
    """
    # mkstemp makes it 0600. The name begins with a dot: no pattern for whole files matches it.
    number, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def write_json(path: Path, value: Any) -> None:
    """Writes plain values as JSON, whole or not at all.

    Raises:
        OSError: The system refuses.
    """
    write_private(path, json.dumps(value, indent=1).encode() + b"\n")


def read_json(path: Path) -> Any:
    """Reads what `write_json` wrote; None when there is no such file.

    Raises:
        OSError: It is there and cannot be read.
        ValueError: It holds something else.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return json.loads(content)
