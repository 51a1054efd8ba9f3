"""A program does not read the parts of a directory that a previous program has read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mesh_fs import CacheOptions

pytestmark = pytest.mark.usefixtures("needs_mounts")

LARGE_BYTES = 48_000_000
#: Exceeds all other reads of the source process.
FEW_BYTES = 30_000_000

#: Mounts a directory; prints the number of bytes that the source process has read so far, and the
#: content of a file of the mount.
_PROGRAM = """
import sys
from pathlib import Path
from mesh_core import this_host
from mesh_fs import CacheOptions, SnapshotOptions, remotemount
from mount_processes import SOURCE, the_process

source, mountpoint, folder, is_cached = sys.argv[1:]
snapshot = SnapshotOptions(is_cached=is_cached == "True")
cache = CacheOptions(folder=folder)
with remotemount(this_host(), source, mountpoint, snapshot=snapshot, cache=cache) as handler:
    counts = Path(f"/proc/{the_process(SOURCE)}/io").read_text()
    print(counts.split()[1], Path(mountpoint, "text").read_text())
    # What is not in the cache would be read for the next program, too.
    handler.wait(60)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory that has been unchanged for a while."""
    root = tmp_path / "tree"
    root.mkdir()
    (root / "large").write_bytes(os.urandom(LARGE_BYTES))
    (root / "text").write_text("before")
    wait_for_a_later_time(tmp_path, root / "text")
    return root


def wait_for_a_later_time(folder: Path, file: Path) -> None:
    """Wait until changed files get a later timestamp than this one."""
    probe = folder / "probe"
    probe.touch()
    while probe.stat().st_ctime_ns <= file.stat().st_ctime_ns:
        probe.chmod(0o600)
    probe.unlink()


def mounted(
    tree: Path, mountpoint: Path, cache: CacheOptions, *, is_cached: bool = True
) -> tuple[int, str]:
    """Mount the tree in a program; return the bytes that it has read, and the content of `text`."""
    assert cache.folder is not None
    arguments = [tree, mountpoint, cache.folder, str(is_cached)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    output = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments],
        env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    return int(output[0]), output[1]


def ledgers(cache: CacheOptions) -> list[Path]:
    """Return the ledger files on the client."""
    assert cache.folder is not None
    return sorted(Path(cache.folder, "ledgers").glob("*"))


def test_the_next_program_reads_only_changed_files(
    tree: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    count, text = mounted(tree, mountpoint, cache)
    assert (count > LARGE_BYTES, text) == (True, "before")
    (ledger,) = ledgers(cache)
    assert ledger.stat().st_mode & 0o777 == 0o600
    count, text = mounted(tree, mountpoint, cache)
    assert (count < FEW_BYTES, text) == (True, "before")
    times = (tree / "text").stat()
    (tree / "text").write_text("behind")
    os.utime(tree / "text", ns=(times.st_atime_ns, times.st_mtime_ns))
    count, text = mounted(tree, mountpoint, cache)
    assert (count < FEW_BYTES, text) == (True, "behind")


def test_a_damaged_ledger_is_rewritten(tree: Path, mountpoint: Path, cache: CacheOptions) -> None:
    mounted(tree, mountpoint, cache)
    (ledger,) = ledgers(cache)
    good = ledger.read_bytes()
    for bad in (good[:-10], good[:-10] + b"0123456789", good[:8] + b"\xff" + good[9:]):
        ledger.write_bytes(bad)
        count, text = mounted(tree, mountpoint, cache)
        assert (count > LARGE_BYTES, text) == (True, "before")
        assert ledger.read_bytes() == good


def test_no_ledger_is_kept_if_disabled_or_in_a_world_writable_folder(
    tree: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    mounted(tree, mountpoint, cache, is_cached=False)
    assert ledgers(cache) == []
    assert cache.folder is not None
    folder = Path(cache.folder, "ledgers")
    folder.mkdir()
    folder.chmod(0o777)
    count, text = mounted(tree, mountpoint, cache)
    assert (count > LARGE_BYTES, text) == (True, "before")
    assert ledgers(cache) == []
