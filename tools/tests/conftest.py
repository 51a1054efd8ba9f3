"""A small checkout that a test fills with files."""

import subprocess
from pathlib import Path
from typing import Protocol

import pytest

from tools.rules.tree import Tree


class MakeTree(Protocol):
    """Creates a tree with the given files."""

    def __call__(self, files: dict[str, str]) -> Tree: ...


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    """Create a git checkout with the given files, tracked or not."""

    def make(files: dict[str, str]) -> Tree:
        subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return Tree(tmp_path)

    return make
