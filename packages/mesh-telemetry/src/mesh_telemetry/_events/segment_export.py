"""Moves segments out of memory-backed folders without losing any if the process is killed."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

__all__ = [
    "INCOMPLETE_SUFFIX",
    "make_folder",
    "move_proc",
    "move_remaining",
    "move_segment",
    "read_spill_path",
    "write_atomically",
    "write_spill_path",
]

#: Suffix of incomplete files, which readers ignore.
INCOMPLETE_SUFFIX = ".incomplete"
_NOTE = "spill"
_IDENTITY_FILES = ("identity.json", "own", "endpoints")
_SEGMENT = ".seg"


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, accessible to this user only.

    Raises:
        OSError: The folder cannot be created.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a small file atomically: a reader sees either all of it or nothing.

    Raises:
        OSError: It cannot be written.
    """
    incomplete = path.with_name(f"{path.name}.{os.getpid()}{INCOMPLETE_SUFFIX}")
    incomplete.write_text(text)
    incomplete.rename(path)


def move_segment(path: Path, into: Path) -> None:
    """Move a segment to another folder.

    A reader that looks into both folders finds the segment at any time.

    Raises:
        OSError: It cannot be moved, and remains in place.
    """
    make_folder(into)
    there = into / path.name
    try:
        path.rename(there)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return
    incomplete = there.with_name(there.name + INCOMPLETE_SUFFIX)
    try:
        shutil.copyfile(path, incomplete)
        # The modification time is the upper bound for the age of its rows.
        shutil.copystat(path, incomplete)
        incomplete.rename(there)
    except OSError:
        incomplete.unlink(missing_ok=True)
        raise
    path.unlink()


def move_proc(folder: Path, into: Path) -> None:
    """Move all segments of an exited process, with the files that identify it.

    Raises:
        OSError: Not all of them could be moved.
    """
    names = sorted(os.listdir(folder))
    segments = [name for name in names if name.endswith(_SEGMENT)]
    if not segments:
        return
    make_folder(into)
    for name in _IDENTITY_FILES:
        if name in names:
            write_atomically(into / name, (folder / name).read_text())
    for name in segments:
        move_segment(folder / name, into)


def write_spill_path(host_folder: Path, spill: Path) -> None:
    """Record the folder to which remaining segments of a host's processes are to be moved.

    Raises:
        OSError: It cannot be written.
    """
    if read_spill_path(host_folder) != spill:
        write_atomically(host_folder / _NOTE, str(spill))


def read_spill_path(host_folder: Path) -> Path | None:
    """Return the folder to which remaining segments are moved; None if they are discarded."""
    with suppress(OSError):
        return Path((host_folder / _NOTE).read_text())
    return None


def move_remaining(host_folder: Path) -> bool:
    """Move what must be kept of an unused host folder; return whether that succeeded."""
    spill = read_spill_path(host_folder)
    if spill is None:
        return True
    try:
        with os.scandir(host_folder) as entries:
            folders = [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]
        for folder in folders:
            move_proc(folder, spill / folder.name)
    except OSError:
        # The segments remain, and the next process that cleans up retries.
        return False
    return True
