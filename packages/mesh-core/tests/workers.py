"""Real workers on this machine, each a process with a separate port."""

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
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

END_LIMIT_S = 30.0


class WorkerProcess:
    """A worker that listens on the loopback interface, by default on a free port."""

    def __init__(
        self,
        *options: str,
        credentials: Path | None = None,
        listen: str = "tcp://127.0.0.1:0",
        pass_fds: Sequence[int] = (),
    ) -> None:
        trust = [] if credentials is None else ["--credentials", str(credentials)]
        command = [sys.executable, "-m", "mesh_core.worker", "--listen", listen]
        self._process = subprocess.Popen(
            [*command, *options, *trust],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        self.address = said.split()[-1] if said else "it said nothing"

    def sessions(self) -> list[int]:
        """Return the processes that serve jobs: one, except for a moment between two jobs."""
        return children(self._process.pid)

    def descendants(self) -> list[int]:
        """Return all processes on its machine but the worker itself."""
        return _descendants(self._process.pid)

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the job, as if the machine stopped or resumed."""
        for pid in self.sessions():
            for child in [pid, *_descendants(pid)]:
                _send(child, number)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the worker itself."""
        self._process.send_signal(number)

    def fill_output(self) -> None:
        """Fill the pipe of its output, as after many jobs whose lines were not read."""
        inlet = os.open(f"/proc/{self._process.pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(inlet, b"\n")
        os.close(inlet)

    def said(self) -> list[str]:
        """Return its output since it reported its address; waits for its exit."""
        assert self._process.stdout is not None
        return self._process.stdout.read().splitlines()

    def power_off(self) -> None:
        """Kill all processes of the worker, including the worker itself."""
        # All of them together: the exit of one makes others stop in an orderly way.
        left = [self._process.pid, *_descendants(self._process.pid)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                _send(pid, number)
        self._process.wait(END_LIMIT_S)

    def wait(self) -> int:
        """Wait until the worker exits normally; return its exit status."""
        return self._process.wait(END_LIMIT_S)

    def end(self) -> int:
        """Stop the worker in an orderly way; return its exit status."""
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
            # A job that still uses the worker would be notified of its loss.
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
