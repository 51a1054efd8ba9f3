"""The actor that runs a command under a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import threading
from typing import TYPE_CHECKING, TypeAlias

from mesh_core import Actor, current_rank, endpoint
from mesh_jobs._exec.supervised_process import SupervisedProcess

if TYPE_CHECKING:
    from mesh_core import Port
    from mesh_jobs._exec.rank_runner import ExecRequest

__all__ = ["PtyActor", "PtyEvent", "WindowSize"]

# Output of the terminal, or at the end the exit status.
PtyEvent: TypeAlias = "bytes | int"
# Rows and columns.
WindowSize: TypeAlias = "tuple[int, int]"

_PIECE_LEN_MAX = 16 * 1024


class PtyActor(Actor):
    """Actor with a pseudo-terminal, and the command that it controls."""

    def __init__(self) -> None:
        self._process: SupervisedProcess | None = None
        self._terminal = -1
        self._ended = threading.Event()

    @endpoint
    def start(self, request: ExecRequest, size: WindowSize, events: Port[PtyEvent]) -> None:
        """Start the command, and send its output, followed by its exit status, to the port."""
        self._terminal, theirs = os.openpty()
        os.set_blocking(self._terminal, False)
        _set_size(self._terminal, size)
        command = request.command(current_rank())
        self._process = SupervisedProcess(
            command, stdin=theirs, stdout=theirs, stderr=theirs, is_tty=True
        )
        os.close(theirs)
        threading.Thread(target=self._report, args=(events,), name="report", daemon=True).start()

    @endpoint
    def write(self, typed: bytes) -> None:
        """Write input to the terminal; blocks while the command does not read."""
        while typed and not self._ended.is_set():
            # The timeout detects that the command has exited and will never read.
            if select.select([], [self._terminal], [], 0.2)[1]:
                typed = typed[os.write(self._terminal, typed) :]

    @endpoint
    def resize(self, size: WindowSize) -> None:
        """Resize the terminal, which notifies the command."""
        if not self._ended.is_set():
            _set_size(self._terminal, size)

    def __cleanup__(self, error: Exception | None) -> None:
        if self._process is not None:
            self._process.end()

    def _report(self, events: Port[PtyEvent]) -> None:
        assert self._process is not None
        while piece := self._read():
            events.send(piece)
        status = self._process.wait()
        self._ended.set()
        events.send(status)

    def _read(self) -> bytes:
        """Return the next output; empty if no process has the terminal open anymore."""
        while True:
            select.select([self._terminal], [], [])
            try:
                return os.read(self._terminal, _PIECE_LEN_MAX)
            except BlockingIOError:
                continue
            except OSError:
                return b""  # EIO: on Linux, the last process has closed the terminal.


def _set_size(terminal: int, size: WindowSize) -> None:
    rows, columns = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
