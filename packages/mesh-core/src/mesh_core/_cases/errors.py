"""Errors of cases."""

from __future__ import annotations

from mesh_core._errors import MeshError

__all__ = ["CaseError", "InvalidPart"]


class CaseError(MeshError):
    """A case cannot be written, read or compared; the message has the reason and the remedy.

    Attributes:
        path: The file.
        part: The part of the file that is wrong, such as `case.json`, or empty.
    """

    def __init__(self, message: str, path: str = "", part: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.part = part


# Tracebacks show the public name.
CaseError.__module__ = "mesh_core.case"


class InvalidPart(ValueError):
    """A part of a case is invalid; the caller, which knows the file, turns it into a `CaseError`.

    Attributes:
        part: The part of the file, such as `case.json`.
        problem: The problem with the part.
        remedy: The action that the user can take, if it depends on the problem; otherwise empty.
    """

    def __init__(self, part: str, problem: str, remedy: str = "") -> None:
        super().__init__(part, problem, remedy)
        self.part = part
        self.problem = problem
        self.remedy = remedy
