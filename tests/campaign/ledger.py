"""The measurements of a campaign: a table by kind, a file of all failures, and a picture."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 860, 320, 40
#: More points of a curve than this cannot be distinguished.
POINTS_MAX = 1000


@dataclass(frozen=True)
class Entry:
    """A failure that was injected, and how training recovered.

    Attributes:
        number: Its number, from 0.
        kind: The kind of fault.
        rank: The rank that it was injected into.
        reported_as: The kinds that were reported.
        step: The last step before the failure.
        lost_steps: The number of steps that were repeated.
        source: Where the state came from.
        damaged_copies: The number of copies that were found damaged.
        detection_s: Seconds from the injection to the report.
        recovery_s: Seconds from the report until training continued.
    """

    number: int
    kind: str
    rank: int
    reported_as: tuple[str, ...]
    step: int
    lost_steps: int
    source: str
    damaged_copies: int
    detection_s: float
    recovery_s: float


def table(entries: Sequence[Entry]) -> str:
    """Return a table of the percentiles by kind."""
    by_kind: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_kind[entry.kind].append(entry)
    head = ("kind", "count", "detection", "recovery p50", "p99", "max", "lost steps", "reported as")
    rows = [head]
    for kind, found in [*sorted(by_kind.items()), ("all", list(entries))]:
        recovery = [one.recovery_s for one in found]
        detection = [one.detection_s for one in found]
        reported = sorted({name for one in found for name in one.reported_as})
        rows.append(
            (
                kind,
                str(len(found)),
                f"{percentile(detection, 50):.2f} s",
                f"{percentile(recovery, 50):.2f} s",
                f"{percentile(recovery, 99):.2f} s",
                f"{max(recovery):.2f} s",
                f"{max(one.lost_steps for one in found)}",
                ", ".join(reported) if kind != "all" else "",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least this percentage of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def write(folder: Path, summary: Mapping[str, object], entries: Sequence[Entry]) -> None:
    """Write the ledger."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {**summary, "failures": [asdict(one) for one in entries]}
    (folder / "campaign.json").write_text(json.dumps(content, indent=1) + "\n")


def draw(
    path: Path,
    disturbed: Mapping[int, float],
    undisturbed: Mapping[int, float],
    failures: Sequence[int],
) -> None:
    """Draw both loss curves, and a mark for each step at which a failure was injected."""
    last = max(max(undisturbed, default=1), 1)
    top = max(undisturbed.values(), default=1.0)

    def point(step: int, loss: float) -> str:
        x = MARGIN + (WIDTH - 2 * MARGIN) * step / last
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * min(loss / top, 1.0)
        return f"{x:.1f},{y:.1f}"

    def curve(losses: Mapping[int, float], color: str, width: float) -> str:
        shown = sorted(losses)[:: max(last // POINTS_MAX, 1)]
        points = " ".join(point(step, losses[step]) for step in shown)
        style = f'fill="none" stroke="{color}" stroke-width="{width}"'
        return f'<polyline points="{points}" {style}/>'

    base = HEIGHT - MARGIN
    marks = "".join(
        f'<line x1="{point(step, 0.0).split(",")[0]}" x2="{point(step, 0.0).split(",")[0]}" '
        f'y1="{base}" y2="{base + 8}" stroke="#c0392b" stroke-width="0.6"/>'
        for step in failures
    )
    text = 'font-family="sans-serif" font-size="12" fill="#555"'
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f"{curve(undisturbed, '#f39c12', 3.0)}{curve(disturbed, '#2c3e50', 1.0)}{marks}"
        f'<text x="{MARGIN}" y="20" {text}>loss of rank 0 by step: without failures (wide), with '
        f"{len(failures)} failures (narrow); marks: failures</text>"
        f'<text x="{MARGIN}" y="{HEIGHT - 8}" {text}>0</text>'
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - 8}" text-anchor="end" {text}>{last}</text>'
        f'<text x="4" y="{MARGIN}" {text}>{top:.1f}</text></svg>\n'
    )
