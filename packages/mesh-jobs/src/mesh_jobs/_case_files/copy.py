"""Copies of cases in a folder of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from mesh_jobs._case_files.case_files import CASE_SUFFIX
from mesh_jobs._errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["copy_case", "is_here"]


def is_here(folder: Path, name: str, length: int) -> bool:
    """Return whether a folder has a case with this name and length; a case never changes."""
    try:
        return (folder / name).stat().st_size == length
    except FileNotFoundError:
        return False


def copy_case(folder: Path, name: str, pieces: Iterable[bytes]) -> Path:
    """Write a case to a file that only its owner can read, and return the path.

    The file appears under its name when it is complete. If another case has this name, the copy has
    a number in its name.

    Raises:
        JobError: The name is not the name of a case.
        OSError: The file cannot be written.
    """
    # The name comes from another machine.
    if Path(name).name != name or not name.endswith(CASE_SUFFIX) or not name.isprintable():
        raise JobError(f"{name!r} is not the name of a case")
    folder.mkdir(parents=True, exist_ok=True)
    path, count = folder / name, 1
    while path.exists():
        count += 1
        path = folder / f"{name.removesuffix(CASE_SUFFIX)}-{count}{CASE_SUFFIX}"
    coming = folder / f".{name}.{token_hex(8)}.tmp"
    fd = os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            for piece in pieces:
                file.write(piece)
        coming.rename(path)
    except BaseException:
        coming.unlink()
        raise
    return path
