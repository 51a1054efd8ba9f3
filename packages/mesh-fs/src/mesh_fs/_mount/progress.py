"""Reports the progress of transfers on stderr."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mesh_fs._mount.host_mount import HostStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mesh_core import MeshError

__all__ = ["TransferProgress", "progress_reporter"]

#: The interval between lines if stderr is not a terminal.
_LINE_S = 1.0
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class TransferProgress:
    """The total progress of all hosts.

    Attributes:
        hosts: The number of hosts that are not lost.
        whole_hosts: The number of hosts that have all files.
        files: The number of files on each host.
        total_bytes: The number of bytes that all hosts need.
        here_bytes: The number of bytes that they already have.
    """

    hosts: int
    whole_hosts: int
    files: int
    total_bytes: int
    here_bytes: int

    @staticmethod
    def of(statuses: Iterable[HostStatus | MeshError]) -> TransferProgress:
        """Sum up the statuses of hosts."""
        known = [one for one in statuses if isinstance(one, HostStatus)]
        return TransferProgress(
            hosts=len(known),
            whole_hosts=sum(one.is_complete for one in known),
            files=max((one.files for one in known), default=0),
            total_bytes=sum(one.total_bytes for one in known),
            here_bytes=sum(one.here_bytes for one in known),
        )

    def line(self, elapsed_s: float, first_bytes: int) -> str:
        """Format the progress as one line.

        Args:
            elapsed_s: The time since the first measurement, in seconds.
            first_bytes: The value of `here_bytes` at the first measurement.
        """
        text = (
            f"{self.files} files on {self.whole_hosts} of {self.hosts} hosts, "
            f"{_size(self.here_bytes)} of {_size(self.total_bytes)}"
        )
        received, left = self.here_bytes - first_bytes, self.total_bytes - self.here_bytes
        if elapsed_s <= 0 or received <= 0:
            return text
        rate = received / elapsed_s
        return f"{text}, {_size(rate)}/s, {left / rate:.0f} s left"


@contextmanager
def progress_reporter(progress: bool | None) -> Iterator[Callable[[TransferProgress], None] | None]:
    """Yield a function that reports progress, or None if progress is not shown.

    Args:
        progress: Whether to show progress. None shows it if stderr is a terminal.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if progress is False or sys.stderr is None or not (progress or is_terminal):
        yield None
    elif is_terminal and find_spec("rich") is not None:
        # rich is optional, and only programs that show progress on a terminal need it.
        from mesh_fs._mount.progress_bar import progress_bar  # noqa: PLC0415

        with progress_bar() as report:
            yield report
    else:
        with _lines() as report:
            yield report


@contextmanager
def _lines() -> Iterator[Callable[[TransferProgress], None]]:
    began = time.monotonic()
    first: list[int] = []
    reported_at = began - _LINE_S
    latest, written = "", ""

    def write() -> None:
        nonlocal written
        if latest != written:
            written = latest
            print(latest, file=sys.stderr, flush=True)

    def report(progress: TransferProgress) -> None:
        nonlocal reported_at, latest
        now = time.monotonic()
        first.append(progress.here_bytes)
        del first[1:]
        latest = progress.line(now - began, first[0])
        if now - reported_at >= _LINE_S:
            reported_at = now
            write()

    try:
        yield report
    finally:
        # Report the final state.
        write()


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"
