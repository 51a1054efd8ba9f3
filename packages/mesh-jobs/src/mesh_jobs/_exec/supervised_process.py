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
# The status that a shell reports for SIGKILL.
_SUPERVISOR_LOST = 128 + signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Command:
    """The command of one rank."""

    argv: tuple[str, ...]
    """The program and its arguments; a program without a slash is searched in PATH."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to the environment of the starting process."""
    workdir: str | None = None
    """The working directory; None uses the worker's."""
    error_variable: str | None = None
    """The variable that names a file for the error report of the command, if it writes one."""

    def environment(self) -> dict[str, str]:
        """Return the environment of the command.

        As in an activated virtual environment, `python` is the interpreter of the worker.
        """
        inherited = dict(os.environ)
        folder = str(Path(sys.executable).parent)
        path = inherited.get("PATH", os.defpath)
        if folder not in path.split(os.pathsep):
            inherited["PATH"] = os.pathsep.join([folder, path])
        return {**inherited, **self.env}


class SupervisedProcess:
    """A running command, which is terminated when the process that holds this object exits."""

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
        """Send a signal to the process group of the command; does nothing after its exit."""
        try:
            self._control.send(bytes([number]))
        except OSError:
            return

    def end(self) -> None:
        """Terminate the command and its descendants, with SIGKILL after 5 s; does not wait."""
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def wait(self) -> int:
        """Wait until all processes have exited; return the status, 128 + N for signal N."""
        said = b""
        while part := self._control.recv(16):
            said += part
        self._supervisor.wait()
        self._control.close()
        return int(said) if said else _SUPERVISOR_LOST
