"""A process inside an enclosure, seen from outside: like `subprocess.Popen`, in text."""

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

    It ends with the enclosure at the latest; when that is killed, so is this.
    """

    stdin: IO[str] | None
    stdout: IO[str] | None
    stderr: IO[str] | None

    def __init__(
        self, argv: Sequence[str], report: socket.socket, pidfd: int, streams: Streams
    ) -> None:
        """Takes over the socket on which the agent will report the end, and all else."""
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
        """Its id as seen from outside.

        Raises:
            ProcessLookupError: It ended before anybody could look.
        """
        if self._pid is None:
            raise ProcessLookupError(f"{self.argv[0]} ended at once")
        return self._pid

    @property
    def is_released(self) -> bool:
        """Whether all that belonged to it is closed."""
        return self._pidfd < 0

    def poll(self) -> int | None:
        """Returns how it ended, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the status: a negative number is the signal it died of.

        Raises:
            subprocess.TimeoutExpired: It had not ended by then.
        """
        if self.returncode is None:
            self._wait_for_report(timeout)
        with self._ending:
            if self.returncode is None:
                self.returncode = self._reported()
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it still runs."""
        with self._ending:
            if self.returncode is None:
                try:
                    signal.pidfd_send_signal(self._pidfd, number)
                except ProcessLookupError:
                    return  # it ended, and the report is on its way

    def terminate(self) -> None:
        """Asks it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Writes, closes, reads all there is to read, waits, and returns both outputs.

        Raises:
            subprocess.TimeoutExpired: It had not ended by then; it has been killed.
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
        """Kills it if it runs, and closes what was open towards it."""
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
                    continue  # what was still buffered has nowhere to go

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
            return  # it did not want to hear the rest

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
        # The agent itself was killed, and all it had started with it.
        return int(json.loads(message)["status"]) if message else -signal.SIGKILL


#: Standard input, output and error, where they are pipes.
Streams = tuple[IO[str] | None, IO[str] | None, IO[str] | None]


class _Reader:
    """Reads a stream to its end, in the background."""

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
            return  # closed from our side: nobody wants the text any more


def pids_of(pidfd: int) -> list[int]:
    """Returns the ids of a process, from our namespace inwards.

    Raises:
        ProcessLookupError: It has ended and was reaped.
    """
    with open(f"/proc/self/fdinfo/{pidfd}") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    pids = [int(pid) for pid in fields.get("NSpid", fields["Pid"]).split()]
    if not pids or pids[0] <= 0:
        raise ProcessLookupError("the process has ended")
    return pids
