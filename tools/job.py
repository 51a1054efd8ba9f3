"""A command that runs concurrently with others; its output is shown at the end or live."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

_PRINTING = threading.Lock()


@dataclass(frozen=True)
class Outcome:
    """The result of a job."""

    name: str
    status: int
    seconds: float
    output: str
    #: CPU time of the command and of the descendants that it waited for, in seconds.
    cpu_seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the exit status is not 0."""
        return self.status != 0


class Job:
    """A command with a name and a time limit that is run once."""

    def __init__(self, name: str, command: Sequence[str], limit_s: float) -> None:
        """Create a job without starting it."""
        self.name = name
        self._command = command
        self._limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def run(self, *, live: bool) -> Outcome:
        """Run the command to completion.

        Args:
            live: Show each line immediately; otherwise show all lines together at the end, so that
                the output of concurrent jobs does not mix.
        """
        if self._is_stopped:
            return Outcome(self.name, -signal.SIGKILL, 0.0, "")
        _show(f"== {self.name} started\n")
        started = time.monotonic()
        # A separate session, so that stopping the job kills all processes that the command started.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        late = threading.Timer(self._limit_s, self.stop)
        late.start()
        output = _collect(self._process, live=live)
        _, wait_status, usage = os.wait4(self._process.pid, 0)
        status = self._process.returncode = os.waitstatus_to_exitcode(wait_status)
        late.cancel()
        seconds = time.monotonic() - started
        word = f"failed with status {status}" if status else "passed"
        ending = f"== {self.name} {word} after {seconds:.0f} s\n"
        _show(ending if live else f"{output}{ending}")
        return Outcome(self.name, status, seconds, output, usage.ru_utime + usage.ru_stime)

    def stop(self) -> None:
        """Kill the command and all its processes; a job that has not started never will."""
        self._is_stopped = True
        # Not `poll`: it could reap the process, and `wait4` would not get the CPU time.
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _collect(process: subprocess.Popen[str], *, live: bool) -> str:
    assert process.stdout is not None
    lines: list[str] = []
    with process.stdout as stream:
        for line in stream:
            lines.append(line)
            if live:
                _show(line)
    return "".join(lines)


def _show(text: str) -> None:
    with _PRINTING:
        sys.stdout.write(text)
        sys.stdout.flush()
