"""Real workers on this machine, each a process with a port of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from freezing import freeze
from host_recorder import children, wait_until_gone

from mesh_core import shutdown_context

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

END_LIMIT_S = 30.0


class WorkerProcess:
    """A worker that listens on the loopback, on a port that the system chose."""

    def __init__(self, *options: str, credentials: Path | None = None) -> None:
        trust = [] if credentials is None else ["--credentials", str(credentials)]
        command = [sys.executable, "-m", "mesh_core.worker", "--listen", "tcp://127.0.0.1:0"]
        self._process = subprocess.Popen(
            [*command, *options, *trust], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        self.address = said.split()[-1] if said else "it said nothing"

    def sessions(self) -> list[int]:
        """The processes that serve jobs: one, but for a moment between two jobs."""
        return children(self._process.pid)

    def signal_all(self, number: signal.Signals) -> None:
        """Sends a signal to what serves the job, as a machine that stops or goes on would."""
        for pid in self.sessions():
            for child in [pid, *_descendants(pid)]:
                _send(child, number)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the worker itself."""
        self._process.send_signal(number)

    def said(self) -> list[str]:
        """What it has printed since it said where it listens; waits for its end."""
        assert self._process.stdout is not None
        return self._process.stdout.read().splitlines()

    def power_off(self) -> None:
        """Kills all that runs there, the worker too."""
        # All of them at once: the end of one is a reason to others to stop in good order.
        left = [self._process.pid, *_descendants(self._process.pid)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                _send(pid, number)
        self._process.wait(END_LIMIT_S)

    def wait(self) -> int:
        """Waits until the worker has ended by itself; gives its exit status."""
        return self._process.wait(END_LIMIT_S)

    def end(self) -> int:
        """Ends the worker in good order; gives its exit status."""
        left = [self._process.pid, *_descendants(self._process.pid)]
        self._process.terminate()
        status = self._process.wait(END_LIMIT_S)
        wait_until_gone(left)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.signal_all(signal.SIGCONT)
            # A job that still uses it would hear that it is lost.
            shutdown_context().get(timeout=END_LIMIT_S)
            self.end()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _descendants(pid: int) -> list[int]:
    found = []
    for child in children(pid):
        found += [child, *_descendants(child)]
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        if number is signal.SIGSTOP:
            freeze(pid)
        else:
            os.kill(pid, number)
