"""Reads cases whose code a caller wants to execute."""

from __future__ import annotations

from mesh_core._cases.case_file import read_case
from mesh_core._replay.errors import ReplayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from mesh_core._cases.case import Case

__all__ = ["read_trusted_case"]


def read_trusted_case(path: Path, trust: bool) -> Case:
    """Read a case.

    Raises:
        CaseError: The file is not a case, or is damaged.
        ReplayError: `trust` is False.
    """
    if not trust:
        raise ReplayError(
            f"a replay executes what {path} contains: pass trust=True (--trust) if you trust "
            "the program that it was recorded from"
        )
    return read_case(path)
