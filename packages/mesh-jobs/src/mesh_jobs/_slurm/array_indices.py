"""The indices of the tasks of a job array, in the format of `sbatch`."""

from __future__ import annotations

import re

from mesh_core import ConfigError

__all__ = ["array_indices"]

_TASKS_MAX = 100_000


def array_indices(array: str) -> list[int]:
    """Return the indices in an array such as `0-3,8-20:4%2`, without the limit after `%`.

    Raises:
        ConfigError: The text is not a valid list of indices, or has too many of them.
    """
    found: list[int] = []
    for part in array.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None or match[3] == "0":
            raise ConfigError(
                f"array is {array!r}: give a number of tasks, or indices such as '0-3,8%2'"
            )
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        found += range(first, last + 1, step)
        if len(found) > _TASKS_MAX:
            raise ConfigError(f"array {array!r} has more than {_TASKS_MAX} tasks: request fewer")
    return sorted(set(found))
