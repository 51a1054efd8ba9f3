"""Common code of the tests with random programs."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings

import mesh_tensor as mt

#: The same programs at each run, without a time limit.
HYPOTHESIS_SETTINGS = settings(
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


def both(value: Any) -> Any:
    """Fetch the value of each of two processes."""
    return [mt.inspect(value, dp=dp) for dp in range(2)]
