"""Commands that make a running program save a case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh_core._cases.case_file import read_case
from mesh_core._cases.program_socket import program_pids, socket_folder

LIMIT_S = 100.0
PROGRAM = """
import sys
from mesh_core import Actor, endpoint, this_host, this_proc
from mesh_core.recording import record

class Worker(Actor):
    @endpoint
    def work(self, number):
        return number

class Owner(Actor):
    @endpoint
    def start(self):
        self.inner = this_proc().spawn("inner", Worker)
        return self.inner.work.call_one(7).get()

if __name__ == "__main__":
    if sys.argv[1:] != ["env"]:
        record("[wio]*")
    workers = this_host().spawn_procs({"n": 2}).spawn("workers", Worker)
    owner = this_host().spawn_procs().spawn("owner", Owner)
    secret = this_host().spawn_procs().spawn("secret", Worker)
    for rank in range(2):
        workers.slice(n=rank).work.call_one(rank).get()
    owner.start.call_one().get()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files of the program and of the commands."""
    monkeypatch.setenv("TMPDIR", "/tmp")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    return tmp_path


class Running:
    """The program."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "program.py"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, **(env or {})},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def end(self) -> None:
        self.process.communicate(timeout=LIMIT_S)


@pytest.fixture
def running(place: Path) -> Iterator[Running]:
    """A program that runs."""
    program = Running(place)
    yield program
    program.end()


def save(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "mesh_core.case", "save", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_running_program_saves_a_case(running: Running, place: Path) -> None:
    pid = str(running.process.pid)
    done = save("workers[1]", "--pid", pid, "--reason", "it looks slow")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.parent == place / "mesh-cases"
    case = read_case(path)
    assert case.reason == "workers[1]: it looks slow"
    assert (case.actors[0].mesh, case.actors[0].rank) == ("workers", 1)
    assert [one.kind for one in case.actors[0].entries] == ["begin", "message", "outcome"]
    # A mesh of one actor, which another actor has spawned.
    done = save("inner", "--pid", pid)
    assert done.returncode == 0, done.stderr
    assert read_case(done.stdout.strip()).actors[0].mesh == "inner"


@pytest.mark.parametrize(
    ("actor", "problem"),
    [
        ("workers", r"has 2 recorded actors: choose workers[0], workers[1]"),
        ("workers[2]", "inner[0], owner[0], workers[0], workers[1]"),
        ("secret", "secret is not recorded: the recorded actors are"),
        ("", "is not an actor"),
    ],
)
def test_the_actor_must_be_recorded_and_unique(running: Running, actor: str, problem: str) -> None:
    done = save(actor, "--pid", str(running.process.pid))
    assert done.returncode == 2
    assert problem in done.stderr


def test_an_exited_program_is_not_found(place: Path) -> None:
    # The setting has the same effect as the function.
    program = Running(place, "env", env={"MESH_RECORD": "*"})
    pid = program.process.pid
    assert pid in program_pids()
    program.end()
    assert pid not in program_pids()
    killed = Running(place)
    pid = killed.process.pid
    killed.process.send_signal(signal.SIGKILL)
    killed.end()
    assert pid not in program_pids()
    assert not (Path(socket_folder()) / f"{pid}.sock").exists()
    done = save("workers[0]", "--pid", str(pid))
    assert f"no program with pid {pid} of this user is recorded" in done.stderr
