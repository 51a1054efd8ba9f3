"""A third-party backend: found by its entry point, and written against the public interfaces."""

from __future__ import annotations

import ast
from importlib.metadata import entry_points

import pytest

from mesh_jobs.spi import Backend, backend_names
from tools.workspace import ROOT

SOURCE = ROOT / "tests/fixtures/mesh-jobs-example/src/mesh_jobs_example/backend.py"
GUIDE = ROOT / "docs/guides/custom-job-backend.md"
PUBLIC_MODULES = {"mesh_core", "mesh_jobs", "mesh_jobs.spi", "mesh_jobs.testing"}


def test_the_backend_is_found_next_to_the_built_in_backends() -> None:
    assert {"local", "process", "ssh", "scheduler"} <= set(backend_names())
    (found,) = entry_points(group="mesh_jobs.backends", name="scheduler")
    assert found.dist is not None
    assert found.dist.name == "mesh-jobs-example"
    assert issubclass(found.load(), Backend)


def test_the_backend_imports_only_public_modules() -> None:
    tree = ast.parse(SOURCE.read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {one for one in imported if one and one.startswith("mesh_")} <= PUBLIC_MODULES


@pytest.mark.parametrize("lines_max", [60])
def test_the_backend_is_short(lines_max: int) -> None:
    body = [line for line in SOURCE.read_text().splitlines() if line.strip()]
    code = [line for line in body if not line.lstrip().startswith(('"""', "#", "from", "import"))]
    assert len(code) <= lines_max


def test_the_guide_shows_the_unchanged_source_of_the_backend() -> None:
    blocks = GUIDE.read_text().split("```pyi\n")[1:]
    assert blocks
    for block in blocks:
        shown = block.partition("\n```")[0]
        assert shown in SOURCE.read_text(), f"the guide shows what is not there:\n{shown}"
