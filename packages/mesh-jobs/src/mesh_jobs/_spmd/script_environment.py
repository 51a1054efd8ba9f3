"""Variables that other packages add to the environment of scripts, for example to record them."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GROUP", "script_environment"]

#: Each entry point is a function that takes the rank and the variables which the script gets in
#: addition to those of this process, and returns more of them.
GROUP = "mesh_jobs.script_environment"
_log = logging.getLogger("mesh_jobs")


def script_environment(rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that installed packages add; called in the process that starts it."""
    added: dict[str, str] = {}
    for entry in sorted(entry_points(group=GROUP)):
        try:
            added |= entry.load()(rank, environment)
        except Exception as error:
            # The script runs without the variables of this package.
            _log.warning("%s adds nothing to the environment of scripts: %r", entry.name, error)
    return added
