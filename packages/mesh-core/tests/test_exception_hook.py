"""Tracebacks of exceptions that end a program: without the frames of Mesh, unless requested."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import mesh_core
from mesh_core import Extent, Point
from mesh_core._program.exception_hook import hidden_frames

PROGRAM = """
from mesh_core import Extent, Point

def choose(extent):
    return Point(9, extent)

choose(Extent(["gpus"], [2]))
"""


def error_of(program: Path, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1
    return done.stderr


def test_frames_of_mesh_are_hidden_unless_the_setting_is_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    shown = error_of(program)
    assert "in choose" in shown
    assert "mesh_core.MeshIndexError: rank 9 is not in" in shown
    assert "shape.py" not in shown
    assert "shape.py" in error_of(program, MESH_FULL_TRACEBACKS="1")


def frames_while_hidden(error: BaseException) -> list[str]:
    with hidden_frames(error):
        return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def test_the_exception_keeps_its_frames() -> None:
    with pytest.raises(mesh_core.MeshIndexError) as caught:
        Point(9, Extent(["gpus"], [2]))
    before = caught.value.__traceback__
    assert frames_while_hidden(caught.value) == [__file__]
    assert caught.value.__traceback__ is before


def test_linked_exceptions_are_shown_without_frames_of_mesh() -> None:
    with pytest.raises(mesh_core.MeshIndexError) as caught:
        Point(9, Extent(["gpus"], [2]))
    outer = RuntimeError("outer")
    outer.__cause__ = cause = caught.value
    with hidden_frames(outer):
        assert [one.filename for one in traceback.extract_tb(cause.__traceback__)] == [__file__]


def test_an_internal_error_of_mesh_keeps_its_frames() -> None:
    with pytest.raises(TypeError) as caught:
        Extent(["gpus"], None)  # type: ignore[arg-type]
    assert any("shape.py" in file for file in frames_while_hidden(caught.value))


def test_the_version_matches_the_distribution() -> None:
    from importlib.metadata import version

    assert mesh_core.__version__ == version("torchmesh-core")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mesh_core.nothing
