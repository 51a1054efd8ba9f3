"""Trees with very many entries, and the memory use of their mounts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from mount_processes import HOST, SOURCE, the_process

from mesh_core import this_host
from mesh_fs import CacheOptions, MountOptions, remotemount

#: Files in each directory; the number of directories follows from it.
FOLDER_LEN = 1000
#: Limit of the resident memory of each process for an empty tree.
EMPTY_BYTES_MAX = 100_000_000
#: Additional limit per entry: for the host, which needs its memory for other work, and for the
#: source, which releases most of it after the walk.
ENTRY_BYTES_MAX = {HOST: 300, SOURCE: 900}

_MAKE = """
import os, sys
root, first, last, length = sys.argv[1], *map(int, sys.argv[2:])
for folder in range(first, last):
    os.mkdir(f"{root}/folder{folder}")
    os.chdir(f"{root}/folder{folder}")
    for number in range(length - 1):
        os.mknod(f"some-file-{number}")
"""


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in memory, in which many files can be created quickly."""
    place = Path("/dev/shm", f"mesh-fs-entries-{os.getpid()}")
    place.mkdir()
    yield place
    shutil.rmtree(place)


def make(root: Path, entries: int) -> None:
    """Create this number of entries, with a process for each CPU."""
    root.mkdir()
    folders, workers = entries // FOLDER_LEN, os.cpu_count() or 1
    edges = [folders * part // workers for part in range(workers + 1)]
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", _MAKE, root, str(first), str(last), str(FOLDER_LEN)]
        )
        for first, last in pairwise(edges)
    ]
    assert [maker.wait() for maker in makers] == [0] * workers


def resident_bytes_max(pid: int) -> int:
    """Return the peak resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def walk(root: Path) -> tuple[int, int]:
    """Stat all entries; return their number, and the number of files among them."""
    entries = files = 0
    for place, folders, names in os.walk(root):
        entries += len(folders) + len(names)
        files += sum(os.lstat(f"{place}/{name}").st_size == 0 for name in names)
    return entries, files


@pytest.mark.usefixtures("needs_mounts")
@pytest.mark.parametrize(
    "entries",
    [100_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_many_entries_are_mounted_and_walked_in_little_memory(
    memory_folder: Path, mountpoint: Path, entries: int
) -> None:
    root = memory_folder / "tree"
    make(root, entries)
    cache = CacheOptions(folder=str(memory_folder / "chunks"))
    files = entries - entries // FOLDER_LEN
    began = time.monotonic()
    with remotemount(
        this_host(), root, mountpoint, cache=cache, mount=MountOptions(backend="fuse")
    ) as handler:
        opened = time.monotonic()
        assert walk(mountpoint) == (entries, files)
        walked = time.monotonic()
        (root / "folder7/some-file-7").write_bytes(b"edited")
        (root / "folder8/added").write_bytes(b"new")
        assert handler.refresh() is True
        refreshed = time.monotonic()
        assert walk(mountpoint) == (entries + 1, files - 1)
        assert (mountpoint / "folder7/some-file-7").read_bytes() == b"edited"
        memory = {name: resident_bytes_max(the_process(name)) for name in (HOST, SOURCE)}
    print(
        f"{entries} entries: open {opened - began:.1f} s, walk {walked - opened:.1f} s,",
        f"refresh {refreshed - walked:.1f} s, close {time.monotonic() - refreshed:.1f} s, {memory}",
    )
    for name, entry_bytes in ENTRY_BYTES_MAX.items():
        assert memory[name] < EMPTY_BYTES_MAX + entries * entry_bytes, memory
