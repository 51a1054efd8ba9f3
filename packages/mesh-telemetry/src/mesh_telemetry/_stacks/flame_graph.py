"""Flame graphs: sampled stacks of a process with the number of samples of each."""

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
    """The sampled stacks of processes.

    Attributes:
        table: A row for each stack of each process: `proc`, `stack`, which is its calls from the
            outermost separated by `;`, and `samples`.
        svgs: The flame graph of each process by its name, as SVG for a browser.
        failed: Processes that could not be sampled, with the cause.
    """

    table: pa.Table
    svgs: Mapping[str, str]
    failed: tuple[ProcFailure, ...]

    @property
    def svg(self) -> str:
        """The flame graph, if there is exactly one process.

        Raises:
            ValueError: There are several processes.
        """
        if len(self.svgs) != 1:
            raise ValueError(f"flame graphs of {len(self.svgs)} processes: use one of svgs")
        return next(iter(self.svgs.values()))

    def folded(self) -> str:
        """Return the stacks of all processes in folded form: a line each, with its samples.

        The first call of each line is the process.
        """
        columns = (self.table.column(name).to_pylist() for name in ("proc", "stack", "samples"))
        rows = zip(*columns, strict=True)
        return "".join(f"{proc};{stack} {samples}\n" for proc, stack, samples in rows)


@dataclass(frozen=True)
class FlameOptions:
    """Options of a recording.

    Attributes:
        seconds: The duration, rounded up to whole seconds.
        rate: Samples per second.
        is_native: Include native frames.
        has_idle: Include waiting threads.
    """

    seconds: float
    rate: int
    is_native: bool
    has_idle: bool

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= _SECONDS_MAX:
            raise ValueError(
                f"invalid duration of {self.seconds} seconds: use a value above 0 and up to"
                f" {_SECONDS_MAX}"
            )
        if not 0 < self.rate <= _RATE_MAX:
            raise ValueError(
                f"invalid rate of {self.rate} samples per second: use 1 to {_RATE_MAX}"
            )

    def words(self) -> list[str]:
        """Return the arguments for `py-spy record`."""
        wanted = {"--native": self.is_native, "--idle": self.has_idle}
        # Without native frames, the process is not paused, and a few samples may be inconsistent.
        # Native frames can be read only while it is paused.
        wanted["--nonblocking"] = not self.is_native
        words = [word for word, is_wanted in wanted.items() if is_wanted]
        return ["--duration", str(math.ceil(self.seconds)), "--rate", str(self.rate), *words]
