"""The output of a runner: one JSON object per line."""

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
        """Print one number; `extra` is added to the JSON object."""
        line = {**self._fixed, "metric": metric, "value": value, "unit": unit, **extra}
        print(json.dumps(line), flush=True)

    def left_out(self, what: str, why: str) -> None:
        """Report that something was not measured, and why; the table has it in a footnote."""
        self.value("left_out", 0.0, "", what=what, why=why)

    def times(self, prefix: str, seconds: Sequence[float], unit: str) -> None:
        """Print the median and the 10th and 99th percentiles of durations."""
        factor = {"us": 1e6, "ms": 1e3, "s": 1.0}[unit]
        ordered = sorted(seconds)
        n = len(ordered)
        self.value(f"{prefix}p50", statistics.median(ordered) * factor, unit, n=n)
        self.value(f"{prefix}p10", percentile(ordered, 0.10) * factor, unit, n=n)
        self.value(f"{prefix}p99", percentile(ordered, 0.99) * factor, unit, n=n)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the (ascending) values are."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
