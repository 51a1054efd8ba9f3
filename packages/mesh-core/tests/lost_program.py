"""A program with workers that is lost during its work."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from types import TracebackType
    from typing import Self

_HEAD = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
from kept_actors import *
from mesh_core import *

# For programs that wait for it: before there are threads, of which one might take it.
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGUSR1}})
folder, workers = {folder!r}, {workers!r}
configure(host_lease_s={lease_s}, heartbeat_s=0.3, unresponsive_timeout_s=3 * {lease_s})
"""
_TAIL = """
print("ready", flush=True)
while True:
    signal.pause()
"""
ATTACH = """
hosts = attach_to_workers(workers)
"""
ATTACH_AND_HOLD = """
credentials = Credentials.load(folder + "/controller")
hosts = attach_to_workers(workers, credentials=credentials, orphan_grace_s=60)
"""
TAKE_OVER = """
job = take_over(workers, credentials=Credentials.load(folder + "/controller"))
"""


class LostProgram:
    """A program that uses workers and then waits to be lost.

    Args:
        folder: The folder with its files and its credentials.
        workers: The addresses of the workers.
        code: The code of the program, which can use `workers` and `folder`.
        lease_s: The lease of its workers, in seconds.
    """

    def __init__(self, folder: Path, workers: list[str], *code: str, lease_s: float = 1.0) -> None:
        head = _HEAD.format(
            tests=str(Path(__file__).parent), folder=str(folder), workers=workers, lease_s=lease_s
        )
        script = folder / "lost.py"
        script.write_text(head + "".join(map(textwrap.dedent, code)) + _TAIL)
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self._errors = folder / "lost.err"
        with open(self._errors, "w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(script)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "TMPDIR": str(self.temporary)},
            )
        self.said: list[str] = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                break
            self.said.append(line.rstrip("\n"))
        else:
            raise AssertionError(f"it ended before it was ready:\n{self.errors()}")

    def errors(self) -> str:
        """The failures that it printed."""
        return self._errors.read_text()

    def kill(self) -> None:
        """Kill the program."""
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to stop or resume the program."""
        self._process.send_signal(number)

    def wait(self, limit_s: float = 30.0) -> int:
        """Wait until the program exits normally; return its exit status."""
        return self._process.wait(limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
