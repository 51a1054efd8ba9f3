"""Failed tests are run once more in a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.twice import FAILED_MAX
from tools.workspace import ROOT

_ONCE = """
import os, pathlib, sys

def test_well():
    pass

def test_wrong_in_a_used_process():
    mark = pathlib.Path(__file__).with_name("mark")
    was_there = mark.exists()
    mark.touch()
    assert was_there, "not yet"
    assert not hasattr(sys, "used")
    sys.used = True
"""


def run(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "tools.twice", *options]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


@pytest.mark.parametrize("options", [(), ("--numprocesses=2",)])
def test_a_test_that_passes_on_rerun_is_reported_as_unsteady(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    ended = run(tmp_path, _ONCE, *options)
    assert ended.returncode == 0
    reason = "AssertionError: not yet assert False"
    line = f"UNSTEADY test_it.py::test_wrong_in_a_used_process - {reason}"
    assert line in ended.stdout.splitlines()


def test_a_test_that_fails_again_is_a_failure(tmp_path: Path) -> None:
    ended = run(tmp_path, "def test_wrong(): assert 0\n")
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert ended.stdout.count("FAILED test_it.py::test_wrong") == 2
    assert "UNSTEADY" not in ended.stdout


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    count = FAILED_MAX + 1
    ended = run(tmp_path, "".join(f"def test_{n}(): assert 0\n" for n in range(count)))
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    assert f"{count} failed" in ended.stdout
    assert "once more" not in ended.stdout


def test_a_test_that_crashed_its_process_is_run_again(tmp_path: Path) -> None:
    code = _ONCE.replace('assert was_there, "not yet"', "was_there or os._exit(3)")
    ended = run(tmp_path, code, "--numprocesses=2")
    assert ended.returncode == 0
    assert "UNSTEADY test_it.py::test_wrong_in_a_used_process - " in ended.stdout
