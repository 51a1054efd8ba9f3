"""Runs a program as a user would, and checks its output and the processes that it leaves behind."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

#: Passed to the program and inherited by all its processes, to identify processes left behind.
MARK = "MESH_PROGRAM_MARK"

#: Begins the comment at the end of a script that contains its output.
HEAD = "# prints:"

#: Time limit for processes of the program to exit after the program.
LEAVING_LIMIT_S = 2.0

#: Time limit for a program that has taken too long to print the stacks of its threads.
STACKS_LIMIT_S = 10.0


def run_program(
    script: Path, *, cwd: Path, limit_s: float, python: str | Path = sys.executable
) -> str:
    """Run a script to completion and return its output.

    Args:
        script: The script.
        cwd: The directory in which it runs.
        limit_s: The time limit in seconds.
        python: The interpreter.

    Raises:
        AssertionError: The script failed, took too long, or left a process behind.
    """
    mark = uuid.uuid4().hex
    env = {**os.environ, MARK: mark}
    # With unbuffered output, a log line may come between the text and the end of a printed line.
    env.pop("PYTHONUNBUFFERED", None)
    # Files, not pipes: a process left behind would keep a pipe open and only appear slow.
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        command = [str(python), "-X", "faulthandler", str(script)]
        with subprocess.Popen(command, cwd=cwd, env=env, stdout=out, stderr=err) as process:
            ending = _ending(process, limit_s)
        printed, complained = _whole(out), _whole(err)
    assert ending == "ended with 0", f"{script.name} {ending}\n{printed}\n{complained}"
    orphans = left_behind(mark)
    assert not orphans, f"{script.name} left behind: {', '.join(orphans)}"
    return printed


def left_behind(mark: str) -> list[str]:
    """Wait until all processes with this mark have exited; return the remaining ones."""
    deadline = time.monotonic() + LEAVING_LIMIT_S
    pause = threading.Event()
    while True:
        found, is_sure = _marked(f"{MARK}={mark}".encode())
        if (not found and is_sure) or time.monotonic() > deadline:
            return found
        pause.wait(0.01)


def shown_lines(source: str) -> list[str]:
    """Return the output that a script documents."""
    _, _, shown = source.partition(f"\n{HEAD}\n")
    return [line.removeprefix("#") for line in shown.splitlines() if line.strip("# ")]


def missing_line(printed: str, expected: Sequence[str]) -> str | None:
    """Return the first expected line that does not follow the previous expected lines.

    Other lines in between are ignored, and so is whitespace around a line. `...` in an expected
    line matches any text.
    """
    lines = iter(printed.splitlines())
    for wanted in expected:
        if not any(_matches(line.strip(), wanted.strip()) for line in lines):
            return wanted
    return None


def _ending(process: subprocess.Popen[bytes], limit_s: float) -> str:
    try:
        return f"ended with {process.wait(limit_s)}"
    except subprocess.TimeoutExpired:
        pass
    process.send_signal(signal.SIGABRT)  # It prints the stacks of its threads.
    try:
        process.wait(STACKS_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
    return f"took more than {limit_s} s"


def _whole(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _matches(line: str, wanted: str) -> bool:
    first, *others = wanted.split("...")
    if not others:
        return line == wanted
    if not line.startswith(first):
        return False
    position = len(first)
    for part in others[:-1]:
        position = line.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return line.endswith(others[-1]) and len(line) - len(others[-1]) >= position


def _marked(mark: bytes) -> tuple[list[str], bool]:
    """Return the processes with a mark, and whether all environments could be read."""
    found, is_sure = [], True
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            if mark in environment.split(b"\0"):
                status = (folder / "stat").read_text()
                found.append(f"pid {folder.name}: {status.partition('(')[2]}")
            elif not environment and _start_time(folder) >= _start_time(Path("/proc/self")):
                # During an exec a process has memory but no environment yet.
                is_sure = is_sure and (folder / "statm").read_text().startswith("0 ")
        except OSError:
            continue  # The process exited after it was listed.
    return found, is_sure


def _start_time(folder: Path) -> int:
    return int((folder / "stat").read_text().rpartition(")")[2].split()[19])
