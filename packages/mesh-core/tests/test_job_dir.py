"""The directory of a job is removed with its last process, however that exits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh_core._processes.job_dir import JobDir, hold, remove_left

#: Spawns two processes, prints the pids of all of its processes, and waits forever.
PROGRAM = """
import os, signal, sys
from mesh_core import Actor, endpoint, this_host

class Named(Actor):
    @endpoint
    def pids(self):
        return os.getpid(), os.getppid()

if __name__ == "__main__":
    found = this_host().spawn_procs({"procs": 2}).spawn("named", Named).pids.call().get()
    print(os.getpid(), *{pid for pids in found.values() for pid in pids}, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="mesh-test-", dir="/tmp") as made:
        monkeypatch.setattr("tempfile.tempdir", made)
        yield Path(made)


def test_the_next_program_removes_a_directory_without_a_live_process(folder: Path) -> None:
    left = JobDir.new_path()
    left.mkdir()
    (left / "1.sock").touch()
    job = JobDir(JobDir.new_path())
    job.make(lambda: None)
    assert left not in list(folder.iterdir())
    job.close()


def test_a_directory_held_by_a_process_is_not_removed(folder: Path) -> None:
    job = JobDir(JobDir.new_path())
    job.make(lambda: None)
    (held,) = folder.iterdir()
    second = hold(held)
    remove_left(folder)
    assert held.is_dir()
    job.close()
    remove_left(folder)
    assert held.is_dir()
    os.close(second)
    remove_left(folder)
    assert not held.exists()


def test_unrelated_directories_and_symlinks_are_not_removed(folder: Path) -> None:
    other_name = folder / "mesh-something-else"
    other_name.mkdir()
    link = folder / "mesh-link.job"
    link.symlink_to(other_name)
    remove_left(folder)
    assert other_name.is_dir()
    assert link.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_a_directory_of_another_user_is_not_removed(folder: Path) -> None:
    theirs = JobDir.new_path()
    theirs.mkdir()
    os.chown(theirs, 54321, 54321)
    remove_left(folder)
    assert theirs.is_dir()


def test_a_missing_directory_cannot_be_held(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hold(folder / "gone")


def test_the_next_program_removes_the_directory_of_a_killed_program(
    tmp_path: Path, folder: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    (killed,) = _left_by_killed(script, folder)
    with _started(script, folder) as program:
        assert program.stdout is not None
        program.stdout.readline()
        assert killed not in list(folder.iterdir())
        program.communicate("")
    assert list(folder.iterdir()) == []


def _left_by_killed(script: Path, folder: Path) -> list[Path]:
    """Kill all processes of a program together; return the files that they leave behind."""
    with _started(script, folder) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        # Stopped processes cannot react to the death of others.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
    return list(folder.iterdir())


def _started(script: Path, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
