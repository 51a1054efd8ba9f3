"""Every notebook of examples/ runs from its first cell to its last, and leaves nothing behind."""

import os
import uuid
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.programs import MARK, left_behind
from tools.workspace import ROOT

EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.rglob("*.ipynb"))
CELL_LIMIT_S = 120
#: Notebooks that run the program of a script in their folder.
SLOW = (EXAMPLES / "grpo" / "notebook.ipynb",)


def name_of(path: Path) -> str:
    """Return the name of a notebook in the list of tests."""
    return str(path.relative_to(EXAMPLES))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name_of(path), marks=pytest.mark.slow if path in SLOW else ())
        for path in NOTEBOOKS
    ],
)
def test_notebook(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("MESH_HOME", str(tmp_path / "home"))  # without other jobs of the same name
    # A user starts Jupyter in the folder of the notebook, and can therefore import its modules.
    search_path = filter(None, [str(path.parent), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(search_path))
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=CELL_LIMIT_S, resources=resources).execute()
    assert left_behind(mark) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
