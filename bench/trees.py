"""Directories that are mounted in a benchmark: made, and read from one end to the other."""

from __future__ import annotations

import os
from pathlib import Path

from bench.scale import QUICK, Scale

MIB = 1 << 20
#: Bytes of each small file of a tree.
SMALL_BYTES = 8 << 10
_LARGE_FILES = 4
_FOLDER_LEN = 100
_BUFFER = bytearray(MIB)


def make_tree(root: Path, scale: Scale) -> int:
    """Makes many small files and a few large ones; gives the bytes of one large one."""
    folders, large = (4, 12 * MIB) if scale is QUICK else (40, 117 * MIB)
    make_small(root, folders, SMALL_BYTES)
    for number in range(_LARGE_FILES):
        (root / f"large{number}").write_bytes(os.urandom(large))
    return large


def make_small(root: Path, folders: int, nbytes: int) -> None:
    """Makes folders with a hundred files each."""
    for folder in range(folders):
        (root / f"folder{folder}").mkdir(parents=True)
        for file in range(_FOLDER_LEN):
            (root / f"folder{folder}/file{file}").write_bytes(os.urandom(nbytes))


def read_all(root: Path) -> int:
    """Walks a tree and reads each file; gives the bytes."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            file = os.open(f"{folder}/{name}", os.O_RDONLY)
            os.fstat(file)
            while count := os.readv(file, [_BUFFER]):
                total += count
            os.close(file)
    return total


def bytes_of(root: Path) -> int:
    """Gives how many bytes the files of a tree have, by their attributes."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
