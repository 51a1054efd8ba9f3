"""Fixtures for tests of processes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_recorder import Recorder

import mesh_core

# Replaces `mesh_core._program.launch`: an entry is a program.
LAUNCH = """
import sys

def main(entry):
    scope = {}
    exec(entry.decode(), scope)
    return scope.get("code", 0)

if __name__ == "__main__":
    from mesh_core._processes import command as _command
    from mesh_core._system import stdio as _stdio
    entry = _command.take_entry()
    _stdio.install()
    sys.exit(main(entry))
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on `sys.path` for modules of the test."""
    path = tmp_path / "modules"
    path.mkdir()
    (path / "launch_for_test.py").write_text(LAUNCH)
    monkeypatch.syspath_prepend(str(path))
    # An interpreter under another path does not find its installed packages.
    installed = Path(mesh_core.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), str(path)]))
    return path


@pytest.fixture
def recorder(tmp_path: Path, modules: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path, log_dir=tmp_path / "logs", tail_lines=5)
    yield recorder
    recorder.host.close(0)
    assert not recorder.job_dir.exists()
