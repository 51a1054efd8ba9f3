"""Extracts stacks from a flame graph of py-spy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from mesh_telemetry._errors import PySpyError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["folded"]

_SVG = "{http://www.w3.org/2000/svg}"
# Attributes of py-spy's SVG: the index of the first sample of a call, and its number of samples.
_FIRST = "{http://github.com/jonhoo/inferno}x"
_COUNT = "{http://github.com/jonhoo/inferno}w"
_COUNTED = re.compile(r" \([\d,]+ samples?, [\d.]+%\)$")


def folded(svg: str) -> list[tuple[str, int]]:
    """Return the stacks in a flame graph of py-spy, with the samples of each.

    Raises:
        PySpyError: The text is not a flame graph of py-spy.
    """
    try:
        calls = sorted(_calls(svg))
    except (ElementTree.ParseError, AttributeError, TypeError, ValueError, KeyError) as error:
        raise PySpyError(
            f"cannot read the flame graph of py-spy ({error}): install py-spy 0.4"
        ) from None
    # Calls are ordered by their first sample, callers first, so `below` has the callers of a call.
    found: list[tuple[str, int]] = []
    below: list[_Call] = []
    for call in calls:
        while below and (below[-1].end <= call.first or below[-1].depth >= call.depth):
            found += _pop_call(below)
        if below:
            below[-1].own -= call.end - call.first
        below.append(call)
    while below:
        found += _pop_call(below)
    return found


@dataclass(order=True)
class _Call:
    first: int
    depth: float
    end: int
    name: str
    own: int
    """The number of samples in which it was the innermost call."""


def _calls(svg: str) -> Iterator[_Call]:
    for group in ElementTree.fromstring(svg).iter(f"{_SVG}g"):
        title, drawn = group.find(f"{_SVG}title"), group.find(f"{_SVG}rect")
        if title is None or drawn is None:
            continue
        first, count = int(drawn.attrib[_FIRST]), int(drawn.attrib[_COUNT])
        name = _COUNTED.sub("", title.text or "")
        yield _Call(first, float(drawn.attrib["y"]), first + count, name, count)


def _pop_call(below: list[_Call]) -> list[tuple[str, int]]:
    """Pop the innermost call; return its stack if it was innermost in any sample.

    The outermost call is the root of the graph, and not part of stacks.
    """
    stack = ";".join(call.name for call in below[1:])
    call = below.pop()
    return [(stack, call.own)] if below and call.own > 0 else []
