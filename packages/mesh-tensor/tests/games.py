"""What tests of random programs have in common."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings

import mesh_tensor as mt

#: The same programs at each run, however long one takes.
HOW = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


def both(value: Any) -> Any:
    """Brings what each of two processes has."""
    return [mt.inspect(value, dp=dp) for dp in range(2)]
