"""Flame graphs: what a process has run while it was recorded, by how often it was seen there."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from mesh_telemetry._errors import PySpyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from mesh_telemetry._stack_dump import ProcFailure

__all__ = ["FlameGraph", "FlameOptions", "folded"]

_SVG = "{http://www.w3.org/2000/svg}"
# How py-spy says in numbers what it has drawn: where a call begins among the samples, and how many.
_FIRST = "{http://github.com/jonhoo/inferno}x"
_COUNT = "{http://github.com/jonhoo/inferno}w"
_SECONDS_MAX, _RATE_MAX = 300, 1000
_COUNTED = re.compile(r" \([\d,]+ samples?, [\d.]+%\)$")


@dataclass(frozen=True)
class FlameGraph:
    """What processes have run, and how often each stack was seen.

    Attributes:
        table: A row for each stack of each process: `proc`, `stack`, which has its calls from the
            outermost with `;` between, and `samples`.
        svgs: A picture for each process, by its name: SVG that any browser opens.
        failed: Processes that were not recorded, and why.
    """

    table: pa.Table
    svgs: Mapping[str, str]
    failed: tuple[ProcFailure, ...]

    @property
    def svg(self) -> str:
        """The picture of the process, where it is one.

        Raises:
            ValueError: There are several.
        """
        if len(self.svgs) != 1:
            raise ValueError(f"pictures of {len(self.svgs)} processes: take one of svgs")
        return next(iter(self.svgs.values()))

    def folded(self) -> str:
        """Writes the stacks of all processes for other programs: a line each, with its samples.

        The first call of a line is the process.
        """
        columns = (self.table.column(name).to_pylist() for name in ("proc", "stack", "samples"))
        rows = zip(*columns, strict=True)
        return "".join(f"{proc};{stack} {samples}\n" for proc, stack, samples in rows)


@dataclass(frozen=True)
class FlameOptions:
    """How to record.

    Attributes:
        seconds: For how long; a part of a second counts as a whole one.
        rate: How often in a second.
        is_native: Also what runs in C and the like.
        has_idle: Also threads that wait.
    """

    seconds: float
    rate: int
    is_native: bool
    has_idle: bool

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= _SECONDS_MAX:
            raise ValueError(f"{self.seconds} seconds: record above 0 and up to {_SECONDS_MAX}")
        if not 0 < self.rate <= _RATE_MAX:
            raise ValueError(f"{self.rate} looks in a second: take 1 to {_RATE_MAX}")

    def words(self) -> list[str]:
        """Writes them for `py-spy record`."""
        wanted = {"--native": self.is_native, "--idle": self.has_idle}
        # One that need not stop goes on at its pace; the price is a sample that is wrong now and
        # then. What runs in C is read of a process that is stopped alone.
        wanted["--nonblocking"] = not self.is_native
        words = [word for word, is_wanted in wanted.items() if is_wanted]
        return ["--duration", str(math.ceil(self.seconds)), "--rate", str(self.rate), *words]


def folded(svg: str) -> list[tuple[str, int]]:
    """Reads the stacks out of a flame graph of py-spy's, with the samples of each.

    Raises:
        PySpyError: It is none.
    """
    try:
        calls = sorted(_calls(svg))
    except (ElementTree.ParseError, AttributeError, TypeError, ValueError, KeyError) as error:
        raise PySpyError(f"py-spy has drawn something else ({error}): install py-spy 0.4") from None
    # In the order of samples, callers first: what is open below a call are its callers.
    found: list[tuple[str, int]] = []
    below: list[_Call] = []
    for call in calls:
        while below and (below[-1].end <= call.first or below[-1].depth >= call.depth):
            found += _closed(below)
        if below:
            below[-1].own -= call.end - call.first
        below.append(call)
    while below:
        found += _closed(below)
    return found


@dataclass(order=True)
class _Call:
    first: int
    depth: float
    end: int
    name: str
    own: int
    """So many samples have seen it innermost."""


def _calls(svg: str) -> Iterator[_Call]:
    for group in ElementTree.fromstring(svg).iter(f"{_SVG}g"):
        title, drawn = group.find(f"{_SVG}title"), group.find(f"{_SVG}rect")
        if title is None or drawn is None:
            continue
        first, count = int(drawn.attrib[_FIRST]), int(drawn.attrib[_COUNT])
        name = _COUNTED.sub("", title.text or "")
        yield _Call(first, float(drawn.attrib["y"]), first + count, name, count)


def _closed(below: list[_Call]) -> list[tuple[str, int]]:
    """Takes the innermost call; gives its stack if it was seen innermost.

    The outermost stands for all.
    """
    stack = ";".join(call.name for call in below[1:])
    call = below.pop()
    return [(stack, call.own)] if below and call.own > 0 else []
