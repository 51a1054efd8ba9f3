"""The actor that reads the cases on a host."""

from __future__ import annotations

import os
from pathlib import Path

from mesh_core import Actor, endpoint
from mesh_jobs._errors import JobError

__all__ = ["CASE_SUFFIX", "CaseFiles"]

CASE_SUFFIX = ".case"


class CaseFiles(Actor):
    """Reads the cases in a folder of its host.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    @endpoint
    def list_cases(self) -> list[tuple[str, int]]:
        """Return the name and the length of each case; none if the folder does not exist.

        Raises:
            OSError: The folder cannot be read.
        """
        try:
            found = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return []
        # A case has this suffix only when it is complete.
        return [
            (path.name, path.stat().st_size)
            for path in found
            if path.suffix == CASE_SUFFIX and path.is_file() and not path.is_symlink()
        ]

    @endpoint
    def read(self, name: str, start: int, length: int) -> bytes:
        """Return a part of a case.

        Raises:
            JobError: The name is not the name of a case.
            OSError: The case cannot be read.
        """
        if Path(name).name != name or not name.endswith(CASE_SUFFIX):
            raise JobError(f"{name!r} is not the name of a case")
        with open(self._folder / name, "rb", opener=_open_file) as file:
            file.seek(start)
            return file.read(length)


def _open_file(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)
