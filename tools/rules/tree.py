"""The files of the repository and their lines."""

import subprocess
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath


class Tree:
    """A checkout: all files that git tracks or would track."""

    def __init__(self, root: Path) -> None:
        """Create a tree without reading any file."""
        self.root = root
        self._lines: dict[str, list[str]] = {}

    @cached_property
    def paths(self) -> list[str]:
        """All files, relative to the root."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True)
        names = {name for name in listed.stdout.split("\0") if name}
        return sorted(name for name in names if (self.root / name).is_file())

    def having(self, *suffixes: str) -> Iterator[str]:
        """Yield the files with one of these suffixes."""
        return (path for path in self.paths if PurePosixPath(path).suffix in suffixes)

    def lines(self, path: str) -> list[str]:
        """Return the lines of a file."""
        if path not in self._lines:
            text = (self.root / path).read_text(encoding="utf-8")
            self._lines[path] = text.splitlines()
        return self._lines[path]

    def text(self, path: str) -> str:
        """Return the text of a file."""
        return "\n".join(self.lines(path)) + "\n"


def is_test(path: str) -> bool:
    """Return whether a file is part of tests."""
    parts = PurePosixPath(path).parts
    return "tests" in parts[:-1] or parts[-1].startswith("test_") or parts[-1] == "tests.rs"
