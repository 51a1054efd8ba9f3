"""Moves segments out of the folders in memory, so that a kill at any point loses none of them."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

__all__ = [
    "COMING",
    "make_folder",
    "move_proc",
    "move_segment",
    "note_spill",
    "rescue",
    "spill_of",
    "write_whole",
]

#: How files end that are not yet whole; nobody reads them.
COMING = ".coming"
_NOTE = "spill"
_NOTED = ("place.json", "own", "endpoints")
_SEGMENT = ".seg"


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it, all for this user alone.

    Raises:
        OSError: It cannot be made.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Writes a small file, of which who reads it finds all or nothing.

    Raises:
        OSError: It cannot be written.
    """
    coming = path.with_name(f"{path.name}.{os.getpid()}{COMING}")
    coming.write_text(text)
    coming.rename(path)


def move_segment(path: Path, into: Path) -> None:
    """Moves a segment to where it has room; who looks at both places finds it meanwhile.

    Raises:
        OSError: It cannot be moved; it is where it was.
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
    coming = there.with_name(there.name + COMING)
    try:
        shutil.copyfile(path, coming)
        # What it was last written at says how young its rows may be.
        shutil.copystat(path, coming)
        coming.rename(there)
    except OSError:
        coming.unlink(missing_ok=True)
        raise
    path.unlink()


def move_proc(folder: Path, into: Path) -> None:
    """Moves all segments of a process that has ended, and notes whose they are.

    Raises:
        OSError: They cannot all be moved.
    """
    names = sorted(os.listdir(folder))
    segments = [name for name in names if name.endswith(_SEGMENT)]
    if not segments:
        return
    make_folder(into)
    for name in _NOTED:
        if name in names:
            write_whole(into / name, (folder / name).read_text())
    for name in segments:
        move_segment(folder / name, into)


def note_spill(host_folder: Path, spill: Path) -> None:
    """Notes where what is left of the processes of a host is to go.

    Raises:
        OSError: It cannot be written.
    """
    if spill_of(host_folder) != spill:
        write_whole(host_folder / _NOTE, str(spill))


def spill_of(host_folder: Path) -> Path | None:
    """Gives where what is left there is to go; None when it is to be forgotten."""
    with suppress(OSError):
        return Path((host_folder / _NOTE).read_text())
    return None


def rescue(host_folder: Path) -> bool:
    """Moves what is to be kept of a host that nobody uses; says whether nothing of it is left."""
    spill = spill_of(host_folder)
    if spill is None:
        return True
    try:
        with os.scandir(host_folder) as entries:
            folders = [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]
        for folder in folders:
            move_proc(folder, spill / folder.name)
    except OSError:
        # Better there than nowhere: whoever comes next tries again.
        return False
    return True
