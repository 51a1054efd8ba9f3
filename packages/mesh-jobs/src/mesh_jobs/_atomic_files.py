"""Atomic writes of files that only their owner can read."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["check_owner", "private_folder", "read_json", "write_json", "write_private"]

_TRIES_MAX = 100


def private_folder(path: Path) -> Path:
    """Create a folder that only its owner can access, and its missing parents.

    Raises:
        OSError: The folder cannot be created, or it exists and belongs to another user.
    """
    for left in reversed(range(_TRIES_MAX)):
        # Another program that removes its job may remove the folders between any two steps.
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
            check_owner(path)
            break
        except FileNotFoundError:
            if not left:
                raise
    return path


def check_owner(path: Path) -> None:
    """Reject a path that another user could change: the path or its target belongs to that user.

    Raises:
        OSError: The path belongs to another user, or does not exist.
    """
    for about in (path.lstat(), path.stat()):
        if about.st_uid != os.geteuid():
            raise PermissionError(
                errno.EACCES,
                f"belongs to user {about.st_uid}, but this process runs as user {os.geteuid()}: "
                "use a folder of your own",
                str(path),
            )


def write_private(path: Path, content: bytes) -> None:
    """Write a file for its owner only, atomically: a reader sees the old or the new content.

    Raises:
        OSError: The file cannot be written.
    """
    # mkstemp creates the file with mode 0600. The leading dot hides the temporary file from
    # patterns that match complete files.
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
    """Write plain values as JSON, atomically.

    Raises:
        OSError: The file cannot be written.
    """
    write_private(path, json.dumps(value, indent=1).encode() + b"\n")


def read_json(path: Path) -> Any:
    """Read the values that `write_json` wrote; return None if the file does not exist.

    Raises:
        OSError: The file exists and cannot be read.
        ValueError: The file does not contain JSON.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return json.loads(content)
