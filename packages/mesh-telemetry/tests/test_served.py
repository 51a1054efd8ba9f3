"""Programs of a user find programs that serve telemetry, but no killed ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mesh_telemetry._serve.program_files import ServedProgramFile, served_programs
from mesh_telemetry._serve.scopes import Tokens

#: Registers as serving under the pid of its parent, prints a line, and waits for the end of its
#: input.
PROGRAM = """
import os, sys
from mesh_telemetry._serve.scopes import Tokens
from mesh_telemetry._serve.program_files import ServedProgramFile

note = ServedProgramFile(os.getppid(), "http://127.0.0.1:1", "", Tokens("read", "act"))
print("noted", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime folder of the user."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def noted() -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "noted\n"
    return program


def test_a_program_is_found_while_it_runs(folder: Path) -> None:
    with noted() as program:
        assert [one.pid for one in served_programs()] == [os.getpid()]
        program.kill()
    # The pid belongs to a live process.
    assert served_programs() == []


def test_the_next_program_removes_the_tokens_of_a_killed_one(folder: Path) -> None:
    with noted() as program:
        program.send_signal(signal.SIGKILL)
    left = {path.name for path in folder.rglob("*") if path.is_file()}
    assert len(left) == 2
    note = ServedProgramFile(os.getpid(), "http://127.0.0.1:2", "", Tokens("read", "act"))
    assert not left & {path.name for path in folder.rglob("*")}
    assert [one.url for one in served_programs()] == ["http://127.0.0.1:2"]
    note.remove()
    assert not [path for path in folder.rglob("*") if path.is_file()]
