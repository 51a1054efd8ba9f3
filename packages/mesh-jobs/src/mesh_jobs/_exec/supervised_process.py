"""A command that runs under a supervisor process, as its owner sees it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Command", "SupervisedProcess"]

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
# As a shell says it: killed.
_SUPERVISOR_LOST = 128 + signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Command:
    """What one rank runs."""

    argv: tuple[str, ...]
    """The program and its arguments; a program without a slash is looked for in PATH."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the process that starts it."""
    workdir: str | None = None
    """Where it runs; None is where the worker runs."""
    error_variable: str | None = None
    """A variable that names a file where it may say why it fails, which comes home."""

    def environment(self) -> dict[str, str]:
        """Gives the whole environment of the command.

        The worker's own interpreter is the first `python` that the command finds, as in an
        activated virtual environment.
        """
        inherited = dict(os.environ)
        folder = str(Path(sys.executable).parent)
        path = inherited.get("PATH", os.defpath)
        if folder not in path.split(os.pathsep):
            inherited["PATH"] = os.pathsep.join([folder, path])
        return {**inherited, **self.env}


class SupervisedProcess:
    """A command that runs, and ends with whoever has this object."""

    def __init__(
        self,
        command: Command,
        *,
        stdin: int | IO[bytes],
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
        is_tty: bool = False,
    ) -> None:
        self._control, theirs = socket.socketpair()
        kind = "tty" if is_tty else "pipes"
        arguments = [str(theirs.fileno()), kind, command.workdir or "", *command.argv]
        with theirs:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", _SUPERVISOR, *arguments],
                env=command.environment(),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        """Sends a signal to the command's process group; nothing happens once it has ended."""
        try:
            self._control.send(bytes([number]))
        except OSError:
            return

    def end(self) -> None:
        """Ends the command and all that it has started, by force after 5 s; does not wait."""
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def wait(self) -> int:
        """Waits until all is over; gives the exit status as a shell does, 128 + N for signal N."""
        said = b""
        while part := self._control.recv(16):
            said += part
        self._supervisor.wait()
        self._control.close()
        return int(said) if said else _SUPERVISOR_LOST
