"""The first program with each package runs in an environment without other packages."""

from pathlib import Path

import pytest

from tests.programs import missing_line, run_program, shown_lines
from tests.release.conftest import Install
from tools.workspace import PACKAGES, package

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 120


@pytest.mark.timeout(600)  # torch is installed for one of them
@pytest.mark.parametrize("name", PACKAGES)
def test_first_program(name: str, install: Install, tmp_path: Path) -> None:
    script = PROGRAMS / f"{name.removeprefix('mesh-')}.py"
    printed = run_program(script, cwd=tmp_path, limit_s=LIMIT_S, python=install(package(name)))
    missing = missing_line(printed, shown_lines(script.read_text("utf-8")))
    assert missing is None, f"not printed: {missing}\n{printed}"
