"""Every command of the first pages succeeds in a new clone and prints the documented output.

The clone has no environment folder, so a package that a command forgets to install is missing as it
is for a new user. Wheels and compiled crates come from the shared cache: the first sessions of a
run with an empty cache test that they can be built from scratch.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import Document
from tests.programs import missing_line
from tools.workspace import ROOT

PAGES = ("README.md", "docs/start.md", "CONTRIBUTING.md")

#: This command runs everything, including this session.
TEST_COMMAND = "python3 -m tools test"

_LIMIT_S = 600


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Clone the repository, including uncommitted changes."""
    target = tmp_path / "mesh"
    _git("clone", "--quiet", str(ROOT), str(target))
    changed = _git("diff", "HEAD", "--name-only", "-z") + _git(
        "ls-files", "-z", "--others", "--exclude-standard"
    )
    for name in filter(None, changed.split("\0")):
        copy = target / name
        copy.unlink(missing_ok=True)
        if (ROOT / name).is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
    return target


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _environment() -> Iterator[tuple[str, str]]:
    """Yield the variables of a new user's shell, without variables that this session has set."""
    session = str(Path(sys.executable).parent)
    for name, value in os.environ.items():
        if name == "PATH":
            yield name, os.pathsep.join(p for p in value.split(os.pathsep) if p != session)
        elif not name.startswith(("NOX_", "PYTEST_", "UV_", "VIRTUAL_ENV", "PYTHON")):
            yield name, value


@pytest.mark.timeout(2 * _LIMIT_S)
@pytest.mark.parametrize("page", PAGES)
def test_commands_succeed_and_print_what_the_page_shows(page: str, clone: Path) -> None:
    for line, command, shown in Document(ROOT / page).commands():
        if command == TEST_COMMAND:
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=clone,
            env=dict(_environment()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
        )
        where = f"{page}:{line}: {command}\n{done.stdout}"
        assert done.returncode == 0, where
        assert missing_line(done.stdout, shown) is None, where
