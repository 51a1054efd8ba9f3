"""The output of simulated processes: shown immediately, and kept for the exit report."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import contextmanager

from mesh_core._configuration.config import effective
from mesh_core._simulation.scheduler import running_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["LogTail", "simulated_output"]


class LogTail:
    """The last lines that a process has printed."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=effective().log_tail_lines)
        self._begun = ""

    def write(self, text: str) -> None:
        """Add printed text."""
        *lines, self._begun = (self._begun + text).split("\n")
        self._lines.extend(lines)

    def lines(self) -> tuple[str, ...]:
        """Return the lines, with the last one even if it is not complete."""
        return (*self._lines, self._begun) if self._begun else tuple(self._lines)


class _Output:
    """A standard stream that also adds to the log of the process that prints."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Print text."""
        thread = running_thread()
        if thread is not None:
            process: Any = thread.process
            process.log_tail.write(text)
        return self._stream.write(text)  # type: ignore[no-any-return]

    def writelines(self, lines: Any) -> None:
        """Print several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def simulated_output() -> Iterator[None]:
    """Keep the output of processes while the block runs."""
    streams = sys.stdout, sys.stderr
    outputs: tuple[Any, Any] = _Output(streams[0]), _Output(streams[1])
    sys.stdout, sys.stderr = outputs
    try:
        yield
    finally:
        # Code in the block may have replaced the streams, and restores them later.
        if sys.stdout is outputs[0]:
            sys.stdout = streams[0]
        if sys.stderr is outputs[1]:
            sys.stderr = streams[1]
