"""The worker process that backends start."""

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
    """A secret in the format of an allocation request."""
    folder = tmp_path / "issued"
    Credentials.create().issue(role="worker", name="one").save(folder)
    files = {path.name: path.read_text() for path in folder.iterdir()}
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(files))
    return secret


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start workers whose temporary files are in `tmp`."""
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
    """Read the output of a worker until its report, and return the report."""
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith("{"):
            told: dict[str, Any] = json.loads(line)
            return told
    raise AssertionError(worker.communicate())


def left(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tmp").iterdir())


def test_the_worker_writes_its_report_to_a_file_and_to_standard_output(
    start: Start, keys: Path, tmp_path: Path
) -> None:
    path = tmp_path / "ones-{rank}.json"
    words = ["--mesh", "ones", "--rank", "env:MY_RANK", "--epoch", "2", "--allocation-id", "abc"]
    worker = start(*words, "--secret", str(keys), "--report", str(path), env={"MY_RANK": "3"})
    told = reported(worker)
    assert json.loads((tmp_path / "ones-3.json").read_text()) == told
    assert told["address"].startswith("tcp://127.0.0.1:")
    assert (told["mesh"], told["rank"], told["epoch"], told["allocation_id"]) == (
        "ones",
        3,
        2,
        "abc",
    )
    assert told["pid"] == worker.pid


def test_the_worker_removes_its_keys_when_it_exits(
    start: Start, keys: Path, tmp_path: Path
) -> None:
    worker = start("--mesh", "ones", "--rank", "0", "--secret", str(keys))
    reported(worker)
    (folder,) = left(tmp_path)
    assert [path.stat().st_mode & 0o77 for path in [folder, *folder.rglob("*")]] == [0, 0, 0]
    worker.terminate()
    assert worker.wait(END_S) == 0
    assert left(tmp_path) == []


def test_an_unused_worker_exits(start: Start, keys: Path, tmp_path: Path) -> None:
    worker = start("--mesh", "ones", "--rank", "0", "--secret", str(keys), "--ttl", "0.2")
    said, _ = worker.communicate(timeout=END_S)
    assert "mesh worker: unused for 0.2 s" in said
    assert worker.returncode == 0
    assert left(tmp_path) == []


def test_the_secret_can_be_passed_on_standard_input(start: Start, keys: Path) -> None:
    worker = start("--mesh", "ones", "--rank", "0", "--secret", "-")
    assert worker.stdin is not None
    worker.stdin.write(keys.read_text())
    worker.stdin.close()
    worker.stdin = None
    assert reported(worker)["address"]


def test_the_secret_can_be_a_folder_of_credentials(start: Start, tmp_path: Path) -> None:
    Credentials.create().issue(role="worker", name="one").save(tmp_path / "keys")
    worker = start("--mesh", "ones", "--rank", "0", "--secret", str(tmp_path / "keys"))
    assert reported(worker)["address"]


def test_the_worker_reports_its_advertised_address(start: Start, keys: Path) -> None:
    words = ["--mesh", "ones", "--rank", "0", "--secret", str(keys)]
    worker = start(*words, "--listen", "tcp://*:0", "--advertise", "env:NAME", env={"NAME": "n7"})
    assert reported(worker)["address"].startswith("tcp://n7:")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--rank", "0", "--secret", "/nowhere/secret"], "No such file"),
        (["--rank", "env:NOT_SET", "--secret", "-"], "the environment variable NOT_SET is not set"),
        (["--rank", "one", "--secret", "-"], "give a whole number"),
        (["--rank", "0", "--secret", "/proc/self/status"], "does not contain a worker secret"),
    ],
)
def test_a_worker_that_cannot_start_prints_the_reason(
    start: Start, words: list[str], complaint: str
) -> None:
    worker = start("--mesh", "ones", *words)
    _, said = worker.communicate(timeout=END_S)
    assert worker.returncode == 2
    assert complaint in said


def test_the_next_worker_removes_the_files_of_a_killed_worker(
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
    # Only the folder of the killed worker was removed.
    assert len(left(tmp_path)) == 2
    assert len(set(before) & set(left(tmp_path))) == 1


# The first argument is a step of the worker; the process signals itself just before or after it.
SIGNALLED = """
import importlib, os, signal, sys
from mesh_jobs.worker import main
module, step = sys.argv[1].rsplit(".", 1)
done = getattr(importlib.import_module(module), step)
def signalled(*given, **named):
    setattr(importlib.import_module(module), step, done)
    if sys.argv[2] == "before":
        signal.raise_signal(int(sys.argv[3]))
    result = done(*given, **named)
    if sys.argv[2] == "after":
        signal.raise_signal(int(sys.argv[3]))
    return result
setattr(importlib.import_module(module), step, signalled)
sys.exit(main(sys.argv[4:]))
"""


@pytest.mark.parametrize(
    ("step", "when", "number", "ttl", "status"),
    [
        ("tempfile.mkdtemp", "after", signal.SIGTERM, "60", 7),
        ("os.rename", "after", signal.SIGINT, "60", 7),
        ("mesh_jobs._worker.worker.run_worker", "before", signal.SIGINT, "60", 7),
        ("mesh_core._workers.worker.on_signals", "before", signal.SIGTERM, "60", 7),
        # These signals arrive after the worker has started to exit for another reason.
        ("mesh_jobs._worker.worker.run_worker", "after", signal.SIGTERM, "0.1", 0),
        ("shutil.rmtree", "before", signal.SIGTERM, "0.1", 0),
        ("shutil.rmtree", "after", signal.SIGINT, "0.1", 0),
    ],
)
def test_a_signal_at_any_time_ends_the_worker_cleanly(
    keys: Path, tmp_path: Path, step: str, when: str, number: signal.Signals, ttl: str, status: int
) -> None:
    (tmp_path / "tmp").mkdir()
    given = [
        "--mesh",
        "ones",
        "--rank",
        "0",
        "--secret",
        str(keys),
        "--listen",
        "tcp://127.0.0.1:0",
    ]
    given += ["--termination-status", "7", "--ttl", ttl]
    run = subprocess.run(
        [sys.executable, "-c", SIGNALLED, step, when, str(number.value), *given],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        timeout=END_S,
    )
    assert (run.returncode, run.stderr) == (status, "")
    assert left(tmp_path) == []


def test_child_processes_exit_when_the_worker_is_killed(start: Start, keys: Path) -> None:
    worker = start("--mesh", "ones", "--rank", "0", "--secret", str(keys))
    reported(worker)
    listed = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
    children = wait_until(lambda: listed.read_text().split(), END_S)
    worker.send_signal(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{children[0]}").exists(), END_S)


def test_an_orphaned_process_is_adopted_and_reaped() -> None:
    program = """
import os, subprocess, sys
from mesh_jobs._worker.subreaper import Subreaper
subreaper = Subreaper()
subreaper.start()
# It ends at once, and leaves a process in a session of its own that ends when it is told to.
# (What runs in the background of a shell has no input of the shell's but by another number.)
line = "exec 3<&0; setsid sh -c 'read word <&3' & echo $!"
kept = subprocess.Popen(["sh", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
kept.stdout.readline()
kept.wait()
def children():
    return open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
while not children():
    pass
kept.stdin.close()
while children():
    subreaper.reap()
print("none is left")
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=END_S
    )
    assert run.stdout == "none is left\n", run.stderr
