"""A test that cannot be interrupted ends with its process, and the others still run."""

import os
import subprocess
import sys
from pathlib import Path

from tools.workspace import ROOT

_HELD = """
import ctypes

def test_that_holds_the_interpreter():
    native, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    native.pthread_mutex_lock(mutex)
    native.pthread_mutex_lock(mutex)

def test_well():
    pass
"""


def test_a_test_that_cannot_be_interrupted_is_reported_with_its_stack(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_HELD)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tools.late", "-p", "no:randomly"]
    run = subprocess.run(
        [*command, "--timeout=1", "--numprocesses=1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "crashed while running 'test_it.py::test_that_holds_the_interpreter'" in run.stdout
    assert "1 failed, 1 passed" in run.stdout
    assert "in test_that_holds_the_interpreter" in run.stderr
