"""The worker that backends start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh_core import Credentials
from mesh_core.testing import wait_until

END_S = 30.0

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A secret, as an order gives it."""
    folder = tmp_path / "issued"
    Credentials.create().issue(role="worker", name="one").save(folder)
    files = {path.name: path.read_text() for path in folder.iterdir()}
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(files))
    return secret


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts workers whose temporary files are in `tmp`."""
    (tmp_path / "tmp").mkdir()
    started = []

    def start(*words: str, **more: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "mesh_jobs.worker", "--listen", "tcp://127.0.0.1:0"]
        env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), **more.pop("env", {})}
        worker = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.terminate()
        worker.communicate(timeout=END_S)


def reported(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """Reads what a worker prints until it has said where it listens."""
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith("{"):
            told: dict[str, Any] = json.loads(line)
            return told
    raise AssertionError(worker.communicate())


def left(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tmp").iterdir())


def test_it_reports_to_a_file_and_prints_the_same(start: Start, keys: Path, tmp_path: Path) -> None:
    path = tmp_path / "ones-{rank}.json"
    words = ["--mesh", "ones", "--rank", "env:MY_RANK", "--epoch", "2", "--order", "abc"]
    worker = start(*words, "--secret", str(keys), "--report", str(path), env={"MY_RANK": "3"})
    told = reported(worker)
    assert json.loads((tmp_path / "ones-3.json").read_text()) == told
    assert told["address"].startswith("tcp://127.0.0.1:")
    assert (told["mesh"], told["rank"], told["epoch"], told["order"]) == ("ones", 3, 2, "abc")
    assert told["pid"] == worker.pid


def test_it_takes_its_keys_with_it(start: Start, keys: Path, tmp_path: Path) -> None:
    worker = start("--mesh", "ones", "--rank", "0", "--secret", str(keys))
    reported(worker)
    (folder,) = left(tmp_path)
    assert [path.stat().st_mode & 0o77 for path in [folder, *folder.rglob("*")]] == [0, 0, 0]
    worker.terminate()
    assert worker.wait(END_S) == 0
    assert left(tmp_path) == []


def test_it_ends_when_no_program_came(start: Start, keys: Path, tmp_path: Path) -> None:
    worker = start("--mesh", "ones", "--rank", "0", "--secret", str(keys), "--ttl", "0.2")
    said, _ = worker.communicate(timeout=END_S)
    assert "no program came for 0.2 s" in said
    assert worker.returncode == 0
    assert left(tmp_path) == []


def test_its_secret_may_come_on_standard_input(start: Start, keys: Path) -> None:
    worker = start("--mesh", "ones", "--rank", "0", "--secret", "-")
    assert worker.stdin is not None
    worker.stdin.write(keys.read_text())
    worker.stdin.close()
    worker.stdin = None
    assert reported(worker)["address"]


def test_it_says_which_address_others_are_to_call(start: Start, keys: Path) -> None:
    words = ["--mesh", "ones", "--rank", "0", "--secret", str(keys)]
    worker = start(*words, "--listen", "tcp://*:0", "--advertise", "env:NAME", env={"NAME": "n7"})
    assert reported(worker)["address"].startswith("tcp://n7:")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--rank", "0", "--secret", "/nowhere/secret"], "No such file"),
        (["--rank", "env:NOT_SET", "--secret", "-"], "the variable NOT_SET is not set here"),
        (["--rank", "one", "--secret", "-"], "give a whole number"),
        (["--rank", "0", "--secret", "/proc/self/status"], "holds no secret of a worker"),
    ],
)
def test_it_says_why_it_cannot_begin(start: Start, words: list[str], complaint: str) -> None:
    worker = start("--mesh", "ones", *words)
    _, said = worker.communicate(timeout=END_S)
    assert worker.returncode == 2
    assert complaint in said


def test_what_a_killed_worker_left_is_cleared_by_the_next(
    start: Start, keys: Path, tmp_path: Path
) -> None:
    words = ["--mesh", "ones", "--rank", "0", "--secret", str(keys)]
    lives, killed = start(*words), start(*words)
    reported(lives)
    reported(killed)
    before = left(tmp_path)
    assert len(before) == 2
    killed.send_signal(signal.SIGKILL)
    killed.wait(END_S)
    for folder in before:
        os.utime(folder, (0, 0))
    reported(start(*words))
    # That of the killed one is gone, those of the others are there.
    assert len(left(tmp_path)) == 2
    assert len(set(before) & set(left(tmp_path))) == 1


def test_its_death_takes_what_serves_a_job_with_it(start: Start, keys: Path) -> None:
    worker = start("--mesh", "ones", "--rank", "0", "--secret", str(keys))
    reported(worker)
    listed = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
    children = wait_until(lambda: listed.read_text().split(), END_S)
    worker.send_signal(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{children[0]}").exists(), END_S)
