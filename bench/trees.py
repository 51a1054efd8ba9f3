"""Directory trees for benchmarks of mounts: creating and reading them."""

from __future__ import annotations

import os
from pathlib import Path

from bench.scale import QUICK, Scale

MIB = 1 << 20
#: Size of each small file of a tree, in bytes.
SMALL_BYTES = 8 << 10
_LARGE_FILES = 4
_FOLDER_LEN = 100
_BUFFER = bytearray(MIB)


def make_tree(root: Path, scale: Scale) -> int:
    """Create many small files and a few large ones; return the size of a large one in bytes."""
    folders, large = (4, 12 * MIB) if scale is QUICK else (40, 117 * MIB)
    make_small(root, folders, SMALL_BYTES)
    for number in range(_LARGE_FILES):
        (root / f"large{number}").write_bytes(os.urandom(large))
    return large


def make_small(root: Path, folders: int, nbytes: int) -> None:
    """Create folders with a hundred files each."""
    for folder in range(folders):
        (root / f"folder{folder}").mkdir(parents=True)
        for file in range(_FOLDER_LEN):
            (root / f"folder{folder}/file{file}").write_bytes(os.urandom(nbytes))


def read_all(root: Path) -> int:
    """Walk a tree and read each file; return the number of bytes."""
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
    """Return the total size of the files of a tree, from their attributes."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
