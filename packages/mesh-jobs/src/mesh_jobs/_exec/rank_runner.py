"""The actor that runs a command on a rank, and sends its output to the program."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mesh_core import Actor, current_rank, endpoint
from mesh_jobs._exec.supervised_process import Command, SupervisedProcess

if TYPE_CHECKING:
    from mesh_core import Point, Port

__all__ = ["OUTPUT_WINDOW", "ExecRequest", "RankEvent", "RankRunner"]

# The rank, the kind (stdout, stderr, error or exit), and the content or the status.
RankEvent: TypeAlias = "tuple[int, str, bytes | int]"

# The maximum number of output pieces of a rank in flight. If the program is slower than its ranks,
# their commands block in writes, as with a slow terminal.
OUTPUT_WINDOW = 64
_PIECE_LEN_MAX = 32 * 1024
# A longer error file is incomplete, so the report shows the output of the rank instead.
_ERROR_FILE_LEN_MAX = 1024 * 1024


class ExecRequest(Protocol):
    """A request to run a command on all ranks of a mesh."""

    def command(self, place: Point) -> Command:
        """Return the command of one rank; called on that rank."""
        ...


class RankRunner(Actor):
    """Actor that runs one command at a time."""

    def __init__(self) -> None:
        self._process: SupervisedProcess | None = None

    @endpoint
    def start(self, request: ExecRequest, events: Port[RankEvent]) -> str:
        """Start the command, and send its output, followed by its exit status, to the port.

        Can be called again after the exit status has been sent.

        Returns:
            The name of the host.
        """
        place = current_rank()
        command, error_file = _with_error_file(request.command(place))
        process = SupervisedProcess(
            command,
            stdin=subprocess.DEVNULL,
            stdout=(pipes := _Pipes()).stdout[1],
            stderr=pipes.stderr[1],
        )
        self._process = process
        pipes.close_writers()
        threading.Thread(
            target=_report,
            args=(process, pipes, place.rank, events, error_file),
            name="report",
            daemon=True,
        ).start()
        return socket.gethostname()

    @endpoint
    def signal(self, number: int) -> None:
        """Send a signal to the process group of the command, as a terminal does."""
        if self._process is not None:
            self._process.signal(number)

    @endpoint
    def end(self) -> None:
        """Terminate the command, with SIGKILL after 5 s."""
        if self._process is not None:
            self._process.end()

    def __cleanup__(self, error: Exception | None) -> None:
        if self._process is not None:
            self._process.end()


class _Pipes:
    """Two pipes for the output of a command."""

    def __init__(self) -> None:
        self.stdout = os.pipe()
        self.stderr = os.pipe()

    def close_writers(self) -> None:
        """Close our copies of the writing ends, so that only the command holds them."""
        os.close(self.stdout[1])
        os.close(self.stderr[1])


def _with_error_file(command: Command) -> tuple[Command, Path | None]:
    """Add the path of an error file to the environment of a command that supports one."""
    if command.error_variable is None:
        return command, None
    path = Path(tempfile.mkdtemp(prefix="mesh-rank-")) / "error.json"
    return replace(command, env={command.error_variable: str(path), **command.env}), path


def _take_error_file(path: Path) -> bytes:
    """Read and remove the error file of a command."""
    said = b""
    with suppress(OSError):
        with path.open("rb") as file:
            said = file.read(_ERROR_FILE_LEN_MAX)
        path.unlink()
    with suppress(OSError):
        path.parent.rmdir()
    return said


def _report(
    process: SupervisedProcess,
    pipes: _Pipes,
    rank: int,
    events: Port[RankEvent],
    error_file: Path | None,
) -> None:
    errors = threading.Thread(target=_copy, args=(pipes.stderr[0], rank, "stderr", events))
    errors.start()
    _copy(pipes.stdout[0], rank, "stdout", events)
    errors.join()
    status = process.wait()
    if error_file is not None and (said := _take_error_file(error_file)) and status:
        events.send((rank, "error", said))
    events.send((rank, "exit", status))


def _copy(fd: int, rank: int, stream: str, events: Port[RankEvent]) -> None:
    with open(fd, "rb", buffering=0) as pipe:
        while piece := pipe.read(_PIECE_LEN_MAX):
            events.send((rank, stream, piece))
