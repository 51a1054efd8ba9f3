"""The rules for pausing at failures, stored in a file of each host."""

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
    """A rule for pausing at failures."""

    mesh: str | None
    """The name of the actors or of their processes; None for all."""
    limit_s: float
    """Seconds after which the actor continues if no client attaches."""


def read_rules(host_folder: Path) -> list[FailureRule]:
    """Return the rules of a host."""
    with suppress(OSError, ValueError, TypeError):
        return [FailureRule(*one) for one in json.loads((host_folder / _NAME).read_text())]
    return []


def write_rules(host_folder: Path, rules: Sequence[FailureRule]) -> None:
    """Write the rules of a host; processes read them when they start and on request."""
    made = host_folder / f"{_NAME}.{os.urandom(4).hex()}"
    made.write_text(json.dumps(rules))
    made.rename(host_folder / _NAME)
