"""Which failures are to stand until somebody has looked at them: a file of the host."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["FailureRule", "read_rules", "write_rules"]

_NAME = "on-failure.json"


class FailureRule(NamedTuple):
    """Has failures stand."""

    mesh: str | None
    """The name of the actors, or of their processes; None for all."""
    limit_s: float
    """After how many seconds a failure goes on at which nobody looks."""


def read_rules(host_folder: Path) -> list[FailureRule]:
    """Gives the rules of a host."""
    with suppress(OSError, ValueError, TypeError):
        return [FailureRule(*one) for one in json.loads((host_folder / _NAME).read_text())]
    return []


def write_rules(host_folder: Path, rules: Sequence[FailureRule]) -> None:
    """Sets the rules of a host; processes read them when they start, and when they are told to."""
    made = host_folder / f"{_NAME}.{os.urandom(4).hex()}"
    made.write_text(json.dumps(rules))
    made.rename(host_folder / _NAME)
