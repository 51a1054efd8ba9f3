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

__all__ = ["Arrived", "shown_progress"]

#: The interval between lines if stderr is not a terminal.
_LINE_S = 1.0
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Arrived:
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
    def of(statuses: Iterable[HostStatus | MeshError]) -> Arrived:
        """Sum up the statuses of hosts."""
        told = [one for one in statuses if isinstance(one, HostStatus)]
        return Arrived(
            hosts=len(told),
            whole_hosts=sum(one.is_complete for one in told),
            files=max((one.files for one in told), default=0),
            total_bytes=sum(one.total_bytes for one in told),
            here_bytes=sum(one.here_bytes for one in told),
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
        come, left = self.here_bytes - first_bytes, self.total_bytes - self.here_bytes
        if elapsed_s <= 0 or come <= 0:
            return text
        rate = come / elapsed_s
        return f"{text}, {_size(rate)}/s, {left / rate:.0f} s left"


@contextmanager
def shown_progress(progress: bool | None) -> Iterator[Callable[[Arrived], None] | None]:
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

        with progress_bar() as tell:
            yield tell
    else:
        with _lines() as tell:
            yield tell


@contextmanager
def _lines() -> Iterator[Callable[[Arrived], None]]:
    began = time.monotonic()
    first: list[int] = []
    told_at = began - _LINE_S
    latest, told = "", ""

    def write() -> None:
        nonlocal told
        if latest != told:
            told = latest
            print(latest, file=sys.stderr, flush=True)

    def tell(arrived: Arrived) -> None:
        nonlocal told_at, latest
        now = time.monotonic()
        first.append(arrived.here_bytes)
        del first[1:]
        latest = arrived.line(now - began, first[0])
        if now - told_at >= _LINE_S:
            told_at = now
            write()

    try:
        yield tell
    finally:
        # Report the final state.
        write()


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"
