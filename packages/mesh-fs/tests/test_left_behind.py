"""A starting program removes the leftovers of programs that were killed with all processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import mount_table, needs

pytestmark = pytest.mark.usefixtures("needs_mounts")

#: Mounts a directory in one way, prints a line, and keeps the mount until its input ends.
PROGRAM = """
import sys
from pathlib import Path
from mesh_core import this_host
from mesh_fs import CacheOptions, MountOptions, gather_mount, remotemount

def show(kind, place, point):
    source = place / "source"
    if kind == "gather":
        return gather_mount(this_host(), str(source), point)
    options = MountOptions(backend="fuse", writable=kind == "writable")
    cache = CacheOptions(folder=str(place / "chunks"))
    return remotemount(this_host(), source, point, cache=cache, mount=options)

if __name__ == "__main__":
    place, kind = Path(sys.argv[1]), sys.argv[2]
    point = place / sys.argv[3]
    with show(kind, place, point):
        print(*(path.read_text() for path in sorted(point.rglob("hello"))))
        sys.stdout.flush()
        sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="mesh-test-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/hello").write_text("world")
    (tmp_path / "program.py").write_text(PROGRAM)
    yield tmp_path
    for point in reversed(mount_table(tmp_path)):
        subprocess.run(["umount", "-l", point])


@pytest.mark.parametrize("kind", ["fuse", "writable", "gather"])
def test_mounts_of_a_killed_program_are_removed_by_the_next(
    place: Path, folder: Path, kind: str
) -> None:
    needs("fuse", writable=kind == "writable")
    if kind == "gather":
        pytest.importorskip("pyfuse3")
    with started(place, folder, kind, "there") as program:
        mounted = mount_table(place)
        kill_at_once(program.pid)
    assert mount_table(place)
    with started(place, folder, kind, "there"):
        assert len(mount_table(place)) == len(mounted)
    assert mount_table(place) == []
    assert list(folder.iterdir()) == []
    assert not list((place / "chunks").glob("mounts/*"))


def test_mounts_of_a_running_program_remain(place: Path, folder: Path) -> None:
    with started(place, folder, "fuse", "first"):
        with started(place, folder, "fuse", "second"):
            pass
        assert mount_table(place) == [str(place / "first")]
        assert (place / "first/hello").read_text() == "world"


def test_a_mount_of_a_suspended_program_is_not_removed(place: Path, folder: Path) -> None:
    with started(place, folder, "fuse", "first") as program:
        stopped = {program.pid, *descendants(program.pid)}
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            with started(place, folder, "fuse", "second"):
                assert str(place / "first") in mount_table(place)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert (place / "first/hello").read_text() == "world"


@contextmanager
def started(place: Path, folder: Path, kind: str, name: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that has mounted the source, until the block ends."""
    with subprocess.Popen(
        [sys.executable, place / "program.py", place, kind, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "world\n"
        yield program
        program.communicate("")


def kill_at_once(program: int) -> None:
    """Kill a program and all of its processes, such that none can react to the death of another."""
    stopped: set[int] = set()
    while found := {program, *descendants(program)} - stopped:
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        stopped |= found
    for pid in stopped:
        os.kill(pid, signal.SIGKILL)


def descendants(root: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text()
        except (OSError, ValueError):
            continue
        if entry.name.isdigit():
            parents[int(entry.name)] = int(fields.rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}
