"""What a runner says: one JSON object a line."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any


class Recorder:
    """Prints measurements of one driver, workload and placement."""

    def __init__(self, driver: str, workload: str, placement: str) -> None:
        self._fixed = {"driver": driver, "workload": workload, "placement": placement}

    def value(self, metric: str, value: float, unit: str, **extra: Any) -> None:
        """Prints one number; `extra` goes to the JSON beside it."""
        line = {**self._fixed, "metric": metric, "value": value, "unit": unit, **extra}
        print(json.dumps(line), flush=True)

    def left_out(self, what: str, why: str) -> None:
        """Says that something was not measured, and why; it is printed below the table."""
        self.value("left_out", 0.0, "", what=what, why=why)

    def times(self, prefix: str, seconds: Sequence[float], unit: str) -> None:
        """Prints the median, the tenth and the ninety-ninth percentile of some durations."""
        factor = {"us": 1e6, "ms": 1e3, "s": 1.0}[unit]
        ordered = sorted(seconds)
        n = len(ordered)
        self.value(f"{prefix}p50", statistics.median(ordered) * factor, unit, n=n)
        self.value(f"{prefix}p10", percentile(ordered, 0.10) * factor, unit, n=n)
        self.value(f"{prefix}p99", percentile(ordered, 0.99) * factor, unit, n=n)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Returns the value below which `share` of the (ascending) values lie."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
