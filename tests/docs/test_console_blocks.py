"""Console blocks of some documents show real output: their commands run in order."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import Document
from tests.programs import missing_line
from tools.workspace import ROOT

#: Documents whose console blocks form one session. A Python block that begins with `# name.py` is a
#: file in the working directory.
SESSIONS = (
    "docs/guides/cli.md",
    "docs/guides/coming-from-torchrun.md",
    "docs/guides/control-service.md",
    "docs/guides/find-a-race.md",
    "docs/guides/reproduce-a-failure.md",
)
#: Documents whose processes import torch several times each.
SLOW = {"docs/guides/coming-from-torchrun.md"}

_LIMIT_S = 120


def files(document: Document) -> Iterator[tuple[str, str]]:
    """Yield the names and contents of the files that a document shows."""
    for block in document.blocks():
        named = re.fullmatch(r"# (\w+\.py)", block.lines[0]) if block.lines else None
        if block.language == "python" and named:
            yield named.group(1), "\n".join(block.lines) + "\n"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in SESSIONS],
)
def test_commands_print_the_shown_output(name: str, tmp_path: Path) -> None:
    pytest.importorskip("typer")
    document = Document(ROOT / name)
    for file, text in files(document):
        (tmp_path / file).write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "MESH_HOME": str(tmp_path / "home"), "COLUMNS": "120"}

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
        )
        return done.stdout

    try:
        for line, command, shown in document.commands():
            if command.startswith("pip "):
                continue  # The package is already installed in the test environment.
            printed = run(command)
            assert missing_line(printed, shown) is None, f"{name}:{line}: {command}\n{printed}"
    finally:
        run("mesh kill")
