"""A chart of the times of each system relative to Mesh, as SVG without a library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LEFT, _RIGHT, _TOP, _ROW, _WIDTH = 190, 40, 62, 30, 760
#: The width of a name in the legend.
_NAME = 92
#: Distinguishable with every form of colour vision, on a light and on a dark background; the
#: letters distinguish the systems without colours.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#999999", "#8c6d00")


@dataclass(frozen=True)
class Line:
    """A row of the chart: its title, and the ratio of each system."""

    title: str
    ratios: Mapping[str, float]


def chart(lines: Sequence[Line], systems: Sequence[str], title: str) -> str:
    """Return a chart on a logarithmic scale; 1 is Mesh, and farther right is slower.

    Args:
        lines: The rows, from the top.
        systems: The names of the systems, in the order of the legend. Mesh is the first.
        title: The title, which readers without the picture get too.
    """
    ratios = [ratio for line in lines for ratio in line.ratios.values()]
    low = math.floor(math.log10(min([*ratios, 0.5])))
    high = math.ceil(math.log10(max([*ratios, 10.0])))
    height = _TOP + _ROW * len(lines) + 34
    colours = dict(zip(systems, _COLOURS, strict=False))

    def x(ratio: float) -> float:
        share = (math.log10(ratio) - low) / (high - low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{title}</title>",
        "<style>text{font:13px system-ui,sans-serif;fill:#333}.grid{stroke:#ccc}"
        ".letter{font-size:10px;font-weight:600;fill:#fff;text-anchor:middle}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#555}.letter{fill:#fff}}"
        "</style>",
    ]
    for at, name in enumerate(systems):
        parts += _dot(_LEFT + _NAME * at, 18, name, colours[name])
        parts.append(f'<text x="{_LEFT + _NAME * at + 14}" y="22">{name}</text>')
    bottom = height - 30
    for power in range(low, high + 1):
        at_x = x(10.0**power)
        label = f"{10**power:,}x" if power >= 0 else f"{10.0**power:g}x"
        parts.append(f'<line class="grid" x1="{at_x:.1f}" x2="{at_x:.1f}" y1="40" y2="{bottom}"/>')
        parts.append(f'<text x="{at_x:.1f}" y="{height - 12}" text-anchor="middle">{label}</text>')
    for index, line in enumerate(lines):
        y = _TOP + _ROW * index
        parts.append(f'<text x="{_LEFT - 16}" y="{y + 4}" text-anchor="end">{line.title}</text>')
        # Mesh is drawn last, so that it is visible where others are equal.
        for name in reversed(systems):
            if name in line.ratios:
                parts += _dot(x(line.ratios[name]), y, name, colours[name])
    return "\n".join([*parts, "</svg>", ""])


def _dot(x: float, y: float, name: str, colour: str) -> list[str]:
    return [
        f'<circle cx="{x:.1f}" cy="{y}" r="8" fill="{colour}"/>',
        f'<text class="letter" x="{x:.1f}" y="{y + 3.5}">{name[:2].capitalize()}</text>',
    ]
