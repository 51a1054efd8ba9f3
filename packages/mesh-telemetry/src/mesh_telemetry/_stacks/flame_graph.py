"""Flame graphs: what a process has run while it was recorded, by how often it was seen there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from mesh_telemetry._stacks.dump import ProcFailure

__all__ = ["FlameGraph", "FlameOptions"]

_SECONDS_MAX, _RATE_MAX = 300, 1000


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
