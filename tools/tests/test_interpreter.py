"""Tests of the choice of an interpreter."""

import os
import subprocess
import sys
from pathlib import Path

from tools import interpreter


def test_the_chosen_interpreter_has_the_same_version_and_makes_environments() -> None:
    code = "import ensurepip, sys, venv; print(*sys.version_info[:2])"
    shown = subprocess.check_output([interpreter.chosen(), "-I", "-c", code], text=True)
    assert shown.split() == [str(sys.version_info.major), str(sys.version_info.minor)]


def test_another_build_has_another_description(tmp_path: Path) -> None:
    program = tmp_path / "python"
    descriptions = set()
    for changed_s in (1, 2):
        program.touch()
        os.utime(program, (changed_s, changed_s))
        descriptions.add(interpreter.describe(str(program)))
    assert len(descriptions) == 2
