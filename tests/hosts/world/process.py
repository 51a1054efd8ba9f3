"""A process inside an enclosure, controlled from outside like a `subprocess.Popen` in text mode."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import IO

_MESSAGE_BYTES_MAX = 4096
_END_LIMIT_S = 10.0


class HostProcess:
    """A process that the agent of an enclosure started.

    It is killed at the latest with its enclosure.
    """

    stdin: IO[str] | None
    stdout: IO[str] | None
    stderr: IO[str] | None

    def __init__(
        self, argv: Sequence[str], report: socket.socket, pidfd: int, streams: Streams
    ) -> None:
        """Take over the socket on which the agent reports the exit, the pidfd and the streams."""
        self.argv = list(argv)
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = streams
        self._report = report
        self._pidfd = pidfd
        self._ending = threading.Lock()
        try:
            self._pid: int | None = pids_of(pidfd)[0]
        except ProcessLookupError:
            self._pid = None

    @property
    def pid(self) -> int:
        """The pid as seen from outside.

        Raises:
            ProcessLookupError: The process exited before its pid could be read.
        """
        if self._pid is None:
            raise ProcessLookupError(f"{self.argv[0]} ended at once")
        return self._pid

    @property
    def is_released(self) -> bool:
        """Whether all of its descriptors are closed."""
        return self._pidfd < 0

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit and return the status; a negative number is a signal that killed it.

        Raises:
            subprocess.TimeoutExpired: The process did not exit in time.
        """
        if self.returncode is None:
            self._wait_for_report(timeout)
        with self._ending:
            if self.returncode is None:
                self.returncode = self._reported()
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal if the process is running."""
        with self._ending:
            if self.returncode is None:
                try:
                    signal.pidfd_send_signal(self._pidfd, number)
                except ProcessLookupError:
                    return  # It has exited, and the report will arrive.

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Write the input, close it, read both outputs to the end, wait, and return the outputs.

        Raises:
            subprocess.TimeoutExpired: The process did not exit in time and was killed.
        """
        readers = [_Reader(self.stdout), _Reader(self.stderr)]
        writer = threading.Thread(target=self._feed, args=(given,), daemon=True)
        writer.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired as late:
            self.kill()
            self.wait(_END_LIMIT_S)
            out, err = (reader.text(_END_LIMIT_S) for reader in readers)
            late.add_note(f"standard output:\n{out}\nstandard error:\n{err}")
            raise
        out, err = (reader.text(timeout) for reader in readers)
        writer.join(timeout)
        return out, err

    def release(self) -> None:
        """Kill the process if it is running, and close its descriptors."""
        self.kill()
        self.wait(_END_LIMIT_S)
        with self._ending:
            if self._pidfd >= 0:
                self._report.close()
                os.close(self._pidfd)
                self._pidfd = -1
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue  # Buffered data can no longer be written.

    def __enter__(self) -> HostProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _feed(self, given: str) -> None:
        if self.stdin is None:
            return
        try:
            self.stdin.write(given)
            self.stdin.close()
        except BrokenPipeError:
            return  # The process does not read the rest.

    def _wait_for_report(self, timeout: float | None) -> None:
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired(self.argv, timeout or 0.0)

    def _reported(self) -> int:
        try:
            message = self._report.recv(_MESSAGE_BYTES_MAX)
        except ConnectionError:
            message = b""
        # The agent was killed, and with it everything that it had started.
        return int(json.loads(message)["status"]) if message else -signal.SIGKILL


#: Standard input, output and error, if they are pipes.
Streams = tuple[IO[str] | None, IO[str] | None, IO[str] | None]


class _Reader:
    """Reads a stream to its end in the background."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream
        self._pieces: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self, timeout: float | None) -> str:
        self._thread.join(timeout)
        return "".join(self._pieces)

    def _read(self) -> None:
        if self._stream is None:
            return
        try:
            self._pieces.append(self._stream.read())
        except ValueError:
            return  # The stream was closed on our side, so the text is not needed.


def pids_of(pidfd: int) -> list[int]:
    """Return the pids of a process, from our namespace inwards.

    Raises:
        ProcessLookupError: The process has exited and was reaped.
    """
    with open(f"/proc/self/fdinfo/{pidfd}") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    pids = [int(pid) for pid in fields.get("NSpid", fields["Pid"]).split()]
    if not pids or pids[0] <= 0:
        raise ProcessLookupError("the process has ended")
    return pids
