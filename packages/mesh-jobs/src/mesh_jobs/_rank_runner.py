"""The actor that runs a command on a rank, and sends home what it says."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mesh_core import Actor, current_rank, endpoint
from mesh_jobs._kept_process import Command, KeptProcess

if TYPE_CHECKING:
    from mesh_core import Point, Port

__all__ = ["OUTPUT_WINDOW", "Order", "RankNews", "RankRunner"]

# Rank, what it is about (stdout, stderr or exit), and the bytes or the status.
RankNews: TypeAlias = "tuple[int, str, bytes | int]"

# How many pieces of output a rank may have under way. When the program is slower than its ranks,
# their commands wait in their writes as they would for a slow terminal.
OUTPUT_WINDOW = 64
_PIECE_LEN_MAX = 32 * 1024


class Order(Protocol):
    """What a mesh runs."""

    def command(self, place: Point) -> Command:
        """Gives the command of one rank; called there."""
        ...


class RankRunner(Actor):
    """Runs one command."""

    def __init__(self) -> None:
        self._process: KeptProcess | None = None

    @endpoint
    def start(self, order: Order, news: Port[RankNews]) -> None:
        """Starts the command. News comes until its exit status, which is last."""
        place = current_rank()
        process = KeptProcess(
            order.command(place),
            stdin=subprocess.DEVNULL,
            stdout=(pipes := _Pipes()).stdout[1],
            stderr=pipes.stderr[1],
        )
        self._process = process
        pipes.close_writers()
        threading.Thread(
            target=_report, args=(process, pipes, place.rank, news), name="report", daemon=True
        ).start()

    @endpoint
    def signal(self, number: int) -> None:
        """Sends a signal to the command and what it has started, as a terminal does."""
        if self._process is not None:
            self._process.signal(number)

    @endpoint
    def end(self) -> None:
        """Ends the command, by force where it takes more than 5 s."""
        if self._process is not None:
            self._process.end()

    def __cleanup__(self, error: Exception | None) -> None:
        if self._process is not None:
            self._process.end()


class _Pipes:
    """Two pipes, for what a command says."""

    def __init__(self) -> None:
        self.stdout = os.pipe()
        self.stderr = os.pipe()

    def close_writers(self) -> None:
        """Leaves the writing ends to the command alone."""
        os.close(self.stdout[1])
        os.close(self.stderr[1])


def _report(process: KeptProcess, pipes: _Pipes, rank: int, news: Port[RankNews]) -> None:
    errors = threading.Thread(target=_copy, args=(pipes.stderr[0], rank, "stderr", news))
    errors.start()
    _copy(pipes.stdout[0], rank, "stdout", news)
    errors.join()
    news.send((rank, "exit", process.wait()))


def _copy(fd: int, rank: int, stream: str, news: Port[RankNews]) -> None:
    with open(fd, "rb", buffering=0) as pipe:
        while piece := pipe.read(_PIECE_LEN_MAX):
            news.send((rank, stream, piece))
