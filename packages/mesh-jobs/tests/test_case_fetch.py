"""Copies of cases from the hosts of a job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from command import Folder
from workers import END_LIMIT_S

from mesh_core.testing import wait_until
from mesh_jobs import JobError
from mesh_jobs._case_files.copy import copy_case, is_here

pytest.importorskip("typer")

PROGRAM = """
import time
from pathlib import Path
from mesh_core import Actor, endpoint, this_host
from mesh_core.recording import record

class Divider(Actor):
    @endpoint
    def divide(self, number):
        return 1 / number

if __name__ == "__main__":
    record()
    divider = this_host().spawn_procs().spawn("divider", Divider)
    try:
        divider.divide.call_one(0).get()
    except ZeroDivisionError:
        pass
    while not Path("end").exists():
        time.sleep(0.1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A folder in which a job runs a script that saves a case."""
    folder = Folder(tmp_path)
    folder.write("program.py", PROGRAM)
    # Other programs on this machine are recorded elsewhere. The path of a socket must be short.
    with TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as place:
        folder.environment["TMPDIR"] = place
        yield folder
        (tmp_path / "end").touch()
        folder.run("kill")


def test_cases_of_a_running_script_are_copied_once(folder: Folder) -> None:
    folder.said("run", "--detach", "program.py")
    there = folder.path / "mesh-cases"
    wait_until(lambda: there.exists() and list(there.glob("*.case")), END_LIMIT_S)
    copied = folder.said("case", "fetch", "--to", "copies").splitlines()
    (case,) = there.glob("*.case")
    assert copied == [f"copies/{case.name}"]
    copy = folder.path / "copies" / case.name
    assert copy.read_bytes() == case.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o600
    again = folder.run("case", "fetch", "--to", "copies", "--json")
    assert again.stdout == '{"copied": [], "failed": {}}\n'
    # The script is on this machine, too, so it can be made to save one.
    saved = folder.said("record", "save", "divider[0]", "--reason", "on request").strip()
    assert Path(saved).parent == there
    assert folder.said("case", "fetch", "--to", "copies") == f"copies/{Path(saved).name}\n"
    # A command on the host of the script finds it, too.
    command = [sys.executable, "-m", "mesh_core.case", "save", "divider"]
    assert str(there) in folder.said("exec", "--host", "0", "--", *command)


def test_a_job_without_a_script_needs_the_folder(folder: Folder) -> None:
    folder.said("apply")
    done = folder.run("case", "fetch")
    assert done.returncode == 1
    assert "pass the absolute path of their folder" in done.stderr
    there = folder.path / "there"
    there.mkdir()
    (there / "a.case").write_bytes(b"x" * 20_000_000)
    (there / "b.txt").write_bytes(b"y")
    assert folder.said("case", "fetch", str(there), "--to", "here") == "here/a.case\n"
    assert (folder.path / "here" / "a.case").read_bytes() == b"x" * 20_000_000
    assert [path.name for path in (folder.path / "here").iterdir()] == ["a.case"]


def test_the_commands_have_help(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert "--to" in folder.said("case", "fetch", "--help")
    assert "mesh case fetch copies cases" in folder.said("case", "--help")
    assert folder.run("record", "stop").returncode == 2


def test_names_from_hosts_cannot_leave_the_folder(tmp_path: Path) -> None:
    for name in ("../a.case", "/a.case", "a.txt", "a\n.case"):
        with pytest.raises(JobError, match="is not the name of a case"):
            copy_case(tmp_path / "to", name, [b""])
    assert copy_case(tmp_path, "a.case", [b"1", b"2"]).read_bytes() == b"12"
    assert is_here(tmp_path, "a.case", 2)
    assert not is_here(tmp_path, "a.case", 3)
    assert copy_case(tmp_path, "a.case", [b"3"]).name == "a-2.case"


def test_an_incomplete_copy_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"1"
        raise OSError("the host is lost")

    with pytest.raises(OSError, match="the host is lost"):
        copy_case(tmp_path, "a.case", broken())
    assert list(tmp_path.iterdir()) == []
