"""One command that runs beside others: its output is shown whole when it ends, or at once."""

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
    """How a job ended."""

    name: str
    status: int
    seconds: float
    output: str
    #: Processor time of the command and of the descendants that it waited for.
    cpu_seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it ended with anything but status 0."""
        return self.status != 0


class Job:
    """A command with a name and a time limit, run once."""

    def __init__(self, name: str, command: Sequence[str], limit_s: float) -> None:
        """Describes the job; nothing runs yet."""
        self.name = name
        self._command = command
        self._limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def run(self, *, live: bool) -> Outcome:
        """Runs the command to its end.

        Args:
            live: Show each line as it comes; else all lines together at the end, so that jobs that
                run side by side do not mix.
        """
        if self._is_stopped:
            return Outcome(self.name, -signal.SIGKILL, 0.0, "")
        _show(f"== {self.name} started\n")
        started = time.monotonic()
        # A session of its own, so that stopping it ends whatever the command started.
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
        """Ends the command and what it started; a job that has not begun never will."""
        self._is_stopped = True
        # Not `poll`: it could reap the process, and `wait4` would lose the processor time.
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
