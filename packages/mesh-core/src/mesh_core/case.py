"""`python -m mesh_core.case`: lists, shows and compares saved cases, and lets a program save one.

A case contains what an actor received before it failed. These commands, and `ProgramCases`, with
which a program reads its own cases, treat it as untrusted data: they import, unpickle and run
nothing that it contains.
"""

from __future__ import annotations

import sys

from mesh_core._cases.commands import run_command
from mesh_core._cases.errors import CaseError
from mesh_core._cases.saved_case import SavedCase
from mesh_core._recording.program_cases import ProgramCases

__all__ = ["CaseError", "ProgramCases", "SavedCase"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    return run_command(arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main())
