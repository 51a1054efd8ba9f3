"""Prints the stacks of all processes of a test that takes too long: `pytest -p tools.late`.

pytest-timeout shows the threads of the process that runs the test. If that process waits for
another one, the reason is in the stacks of the other.

pytest-timeout raises an exception, which cannot interrupt native code. A test or fixture that
continues is therefore ended with its process, which pytest-xdist reports and replaces.
"""

import faulthandler
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tools.captured import uncaptured_stderr

#: Fraction of the time limit after which the stacks are recorded.
_SHARE = 0.8
#: Multiple of the time limit after which a test that continues is ended with its process.
_END_SHARE = 1.5
#: Time limit for inspecting one process, in seconds.
_LOOK_LIMIT_S = 20.0


def pytest_configure() -> None:
    """Keep the standard error, which is not captured yet."""
    uncaptured_stderr()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Print the stacks and end the process if a test cannot be interrupted at its time limit."""
    limit_s = _limit_s(item)
    if not limit_s:
        return (yield)
    # It works even while native code holds the interpreter.
    faulthandler.dump_traceback_later(limit_s * _END_SHARE, exit=True, file=uncaptured_stderr())
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Record the stacks when a test takes too long; they are shown if it fails."""
    limit_s = _limit_s(item)
    if not limit_s:
        return (yield)
    late = threading.Timer(limit_s * _SHARE, _write_down, [item])
    late.daemon = True
    late.start()
    try:
        return (yield)
    finally:
        late.cancel()


def _limit_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    given = marker.args[0] if marker is not None and marker.args else None
    chosen = (given, item.config.getoption("timeout", None), item.config.getini("timeout"))
    return next((float(one) for one in chosen if one not in (None, "")), 0.0)


def _write_down(item: pytest.Item) -> None:
    spy = Path(sys.executable).with_name("py-spy")
    if not spy.exists():
        return
    for pid in _descendants(os.getpid()):
        command = [str(spy), "dump", "--nonblocking", "--pid", str(pid)]
        try:
            seen = subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_LIMIT_S)
        except subprocess.TimeoutExpired:
            continue
        item.add_report_section("call", f"stacks of {pid}", seen.stdout or seen.stderr)


def _descendants(pid: int) -> Iterator[int]:
    try:
        tasks = sorted(Path(f"/proc/{pid}/task").iterdir())
        children = [int(one) for task in tasks for one in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield child
        yield from _descendants(child)
