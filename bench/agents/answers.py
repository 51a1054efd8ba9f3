"""The symptoms, questions, answers and queries of all programs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
#: The number of queries that suffice for each program.
QUERIES_MAX = 3


@dataclass(frozen=True)
class Problem:
    """A broken program, with a question about it and the expected answer."""

    name: str
    symptom: str
    question: str
    answer: str
    #: Texts that the results of the queries contain.
    found: tuple[str, ...]
    #: The tools of `mesh mcp` to call, with their arguments.
    queries: tuple[Mapping[str, Any], ...]

    @property
    def script(self) -> Path:
        """The program."""
        return _FOLDER / "jobs" / f"{self.name}.py"


def problems() -> list[Problem]:
    """Return all problems, in the order of the file."""
    parsed = tomllib.loads((_FOLDER / "answers.toml").read_text("utf-8"))
    return [
        Problem(name, **{**one, "found": tuple(one["found"]), "queries": tuple(one["queries"])})
        for name, one in parsed.items()
    ]
