"""The cases in the folder in which a program saves them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from mesh_core._cases.case_file import CASE_SUFFIX
from mesh_core._cases.errors import CaseError
from mesh_core._cases.saved_case import SavedCase, case_report, read_saved_case
from mesh_core._configuration.config import effective
from mesh_core._recording.collector import case_folder
from mesh_core._runtime.runtime import runtime_if_any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    # Inode, time of the last change, and length of a file.
    _Mark: TypeAlias = tuple[int, int, int]

__all__ = ["ProgramCases"]

_COUNT_MAX = 500


class ProgramCases:
    """The cases in the folder of this program, including the cases of earlier programs.

    Cases are read as untrusted data: nothing that they contain is imported, unpickled or run.
    Each file is read once, so lists can be requested periodically. Methods can be called from
    any thread.

    Example:
        >>> ProgramCases().cases()
        []
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By path, with the identity of the file that was read.
        self._known: dict[Path, tuple[_Mark, SavedCase]] = {}

    @property
    def folder(self) -> Path:
        """The absolute path of the folder; it does not exist before the first case is saved."""
        return case_folder().absolute()

    @property
    def job(self) -> str:
        """The id of the job as 32 hexadecimal digits; empty in a program that has not started."""
        current = runtime_if_any()
        return "" if current is None else current.identity.job.hex()

    @property
    def is_recording(self) -> bool:
        """Whether processes that are started now are recorded."""
        return effective().record is not None

    def cases(self, count_max: int = _COUNT_MAX) -> list[SavedCase]:
        """Return the cases, the newest first; empty if the folder does not exist.

        Args:
            count_max: The maximum number of cases; older files are not read.

        Raises:
            CaseError: The folder cannot be read.
        """
        with self._lock:
            known: dict[Path, tuple[_Mark, SavedCase]] = {}
            found = []
            for path, status in _newest_files(self.folder, count_max):
                mark = (status.st_ino, status.st_mtime_ns, status.st_size)
                was, case = self._known.get(path, (None, None))
                if case is None or was != mark:
                    case = read_saved_case(path, status)
                known[path] = (mark, case)
                found.append(case)
            self._known = known
        return sorted(found, key=lambda one: one.saved_ns, reverse=True)

    def path(self, name: str) -> Path:
        """Return the path of a file in the folder.

        Args:
            name: The name of the file, without a folder.

        Raises:
            CaseError: It is not the name of a case.
        """
        if os.path.basename(name) != name or not name.endswith(CASE_SUFFIX) or "\0" in name:
            raise CaseError(f"{name!a} is not the name of a case: pass one such as a{CASE_SUFFIX}")
        return self.folder / name

    def report(self, name: str) -> str:
        """Return a case as text, as `python -m mesh_core.case show` prints it.

        Args:
            name: The name of the file, without a folder.

        Raises:
            CaseError: It is not the name of a case, or the file cannot be read.
        """
        return case_report(self.path(name))


def _newest_files(folder: Path, count_max: int) -> list[tuple[Path, os.stat_result]]:
    """Return the files that were changed last."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(CASE_SUFFIX):
                    try:
                        found.append((folder / entry.name, entry.stat()))
                    except FileNotFoundError:
                        # The file was removed after the folder was read.
                        continue
    except FileNotFoundError:
        return []
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"cannot list the folder {folder}: {reason}: check the setting record_dir"
        raise CaseError(message, os.fspath(folder)) from None
    found.sort(key=lambda one: one[1].st_mtime_ns, reverse=True)
    return found[:count_max]
