"""Renders stacks as a flame graph: a static SVG without scripts, small enough to be committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

_WIDTH, _LINE = 1200, 17
#: Narrower frames are omitted.
_WIDTH_MIN = 1.5
_LETTER = 6.3
_OURS, _OTHERS = "#e8a33d", "#8fb4d9"


@dataclass
class _Node:
    count: int = 0
    below: dict[str, _Node] = field(default_factory=dict)


def svg(stacks: Mapping[tuple[str, ...], int]) -> str:
    """Return the SVG, with the outermost call on top and mesh-tensor in a separate colour."""
    root = _Node()
    for stack, count in stacks.items():
        node = root
        node.count += count
        for name in stack:
            node = node.below.setdefault(name, _Node())
            node.count += count
    boxes: list[str] = []
    depth = _draw(root, 0.0, 0, _WIDTH / root.count, root.count, boxes)
    height = depth * _LINE + 4
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="monospace" font-size="10.5">'
    )
    return "\n".join([head, *boxes, "</svg>", ""])


def _draw(node: _Node, x: float, depth: int, scale: float, total: int, boxes: list[str]) -> int:
    """Append the boxes below a node; return the number of rows."""
    deepest = depth
    for name, one in sorted(node.below.items()):
        width = one.count * scale
        if width >= _WIDTH_MIN:
            boxes.append(_box(name, one.count / total, x, depth, width))
            deepest = max(deepest, _draw(one, x, depth + 1, scale, total, boxes), depth + 1)
        x += width
    return deepest


def _box(name: str, share: float, x: float, depth: int, width: float) -> str:
    y = depth * _LINE + 2
    letters = int((width - 4) / _LETTER)
    text = name if len(name) <= letters else name[: max(0, letters - 1)] + "."
    label = f'<text x="{x + 2:.1f}" y="{y + 12}">{escape(text)}</text>' if letters > 3 else ""
    return (
        f"<g><title>{escape(name)} {share:.1%}</title>"
        f'<rect x="{x:.1f}" y="{y}" width="{max(0.5, width - 0.5):.1f}" height="{_LINE - 1}" '
        f'fill="{_colour(name)}"/>{label}</g>'
    )


def _colour(name: str) -> str:
    # A frame is named after its function and, in parentheses, its file: our private modules are in
    # folders that begin with an underscore.
    return _OURS if "(_" in name or "/_" in name else _OTHERS
