"""The summary of all recoveries, as a table in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from bench.recoveries.kills import Recovery


def table(found: Mapping[str, list[Recovery]]) -> str:
    """Return the summary as a table in Markdown."""
    lines = [
        "| system | kills | other ranks continue, median | killed rank trains, median | maximum |"
        " steps repeated per kill | steps without the rank |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for system, recoveries in found.items():
        seconds = sorted(one.seconds for one in recoveries)
        others = statistics.median(one.others_s for one in recoveries)
        repeated = statistics.mean(one.steps_repeated for one in recoveries)
        missed = statistics.mean(one.steps_missed for one in recoveries)
        lines.append(
            f"| {system} | {len(seconds)} | {others:.1f} s | {statistics.median(seconds):.1f} s |"
            f" {seconds[-1]:.1f} s | {repeated:.1f} | {missed:.1f} |"
        )
    return "\n".join(lines)
