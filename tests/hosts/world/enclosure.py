"""Namespaces with an agent in them, which starts processes there.

Nothing of it has a name outside, so nothing can be left behind: when the agent ends, the kernel
ends all processes in there, and with the last of them go the network devices and the mounts.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from tests.hosts.world.process import HostProcess, Streams, pids_of
from tools.system import search_path

AGENT = Path(__file__).with_name("agent.py")

#: How long an agent may take to come up, to answer, to go.
AGENT_LIMIT_S = 30.0
_ANSWER_BYTES_MAX = 4096
_REQUEST_BYTES_MAX = 1 << 20

#: What every enclosure has of its own.
NAMESPACES = ("--net", "--pid", "--mount", "--uts", "--ipc")

Source = IO[str] | int | None


class Start(Protocol):
    """Starts a command in the background, with these as standard input and error."""

    def __call__(self, argv: Sequence[str], stdin: socket.socket, stderr: int, /) -> object:
        """Returns what must be kept until the command has ended."""


class EnclosureGone(RuntimeError):
    """The agent has ended, and all it had started with it: nothing can be started there."""


class Enclosure:
    """One set of namespaces, for as long as its agent lives."""

    def __init__(self, start: Start, *options: str) -> None:
        """Has the agent started in new namespaces, and waits until it is there.

        Args:
            start: Starts a command where the namespaces are to be nested.
            options: More of what `unshare` is to do.

        Raises:
            EnclosureGone: It did not come up; the message has what it complained of.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES_MAX)
        unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", *options]
        # What it complains of would else mix with the output of the tests.
        self._complaints = os.memfd_create("complaints")
        with theirs:
            command = [*unshare, sys.executable, "-I", "-S", str(AGENT)]
            self._kept = start(command, theirs, self._complaints)
        self._control = ours
        self._processes: list[HostProcess] = []
        self._lock = threading.Lock()
        self._pidfd = self._first_pidfd()
        #: The agent's ids, from our namespace inwards; the last is 1.
        self.pids = pids_of(self._pidfd)

    @property
    def is_alive(self) -> bool:
        """Whether the agent is there."""
        return self._pidfd >= 0 and not self._ends_within(0)

    def popen(
        self,
        argv: Sequence[str],
        *,
        stdin: Source = subprocess.DEVNULL,
        stdout: Source = None,
        stderr: Source = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = "/",
    ) -> HostProcess:
        """Starts a process in there; None as a stream is our own, as with `subprocess`.

        Raises:
            OSError: It cannot be started.
            EnclosureGone: The agent has ended.
        """
        inner: list[int] = []
        outer: list[IO[str] | None] = []
        try:
            for number, wanted in enumerate((stdin, stdout, stderr)):
                theirs, ours = _stream(number, wanted)
                inner.append(theirs)
                outer.append(ours)
            request = {
                "act": "spawn",
                "argv": [os.fspath(word) for word in argv],
                "env": dict(environment() if env is None else env),
                "cwd": os.fspath(cwd),
            }
            report, answer, fds = self._ask(request, inner)
            if "errno" in answer:
                report.close()
                raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["path"])
        except BaseException:
            for stream in outer:
                if stream is not None:
                    stream.close()
            raise
        finally:
            for fd in inner:
                os.close(fd)
        streams: Streams = (outer[0], outer[1], outer[2])
        process = HostProcess(argv, report, fds[0], streams)
        with self._lock:
            self._processes = [one for one in self._processes if not one.is_released]
            self._processes.append(process)
        return process

    def run(
        self,
        argv: Sequence[str],
        *,
        given: str = "",
        check: bool = True,
        timeout: float | None = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = "/",
    ) -> subprocess.CompletedProcess[str]:
        """Runs a process in there to its end, and returns what it printed.

        Raises:
            subprocess.CalledProcessError: It failed, and `check` is set; a note has the output.
            subprocess.TimeoutExpired: It took too long, and was killed.
            OSError: It cannot be started.
            EnclosureGone: The agent has ended.
        """
        pipe = subprocess.PIPE
        with self.popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd) as process:
            out, err = process.communicate(given, timeout)
            status = process.wait(0)
        if check and status != 0:
            failed = subprocess.CalledProcessError(status, list(argv), out, err)
            failed.add_note(f"standard output:\n{out}\nstandard error:\n{err}")
            raise failed
        return subprocess.CompletedProcess(list(argv), status, out, err)

    def signal_all(self, number: int) -> None:
        """Sends a signal to every process in there but the agent, to all at the same moment.

        Raises:
            EnclosureGone: The agent has ended.
        """
        report, _, _ = self._ask({"act": "signal_all", "signal": number}, [])
        report.close()

    def open_socket(self, family: socket.AddressFamily, kind: socket.SocketKind) -> socket.socket:
        """Returns a socket of ours that is in the network of the enclosure.

        Raises:
            EnclosureGone: The agent has ended.
        """
        request = {"act": "socket", "family": family, "kind": kind}
        report, _, fds = self._ask(request, [])
        report.close()
        return socket.socket(fileno=fds[0])

    def follow(self, pid: int) -> None:
        """Makes the agent end when that process does, also when others hold its socket open.

        Raises:
            EnclosureGone: The agent has ended.
        """
        pidfd = os.pidfd_open(pid)
        report, _, _ = self._ask({"act": "follow"}, [pidfd])
        os.close(pidfd)
        report.close()

    def kill(self) -> None:
        """Kills all that is in there, in one moment, and returns when it has gone."""
        if self._pidfd < 0:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it went before
        if not self._ends_within(AGENT_LIMIT_S):
            raise TimeoutError(f"an agent was killed and lived on for {AGENT_LIMIT_S:.0f} s")
        with self._lock:
            processes, self._processes = self._processes, []
        for process in processes:
            process.release()
        self._control.close()
        os.close(self._complaints)
        os.close(self._pidfd)
        self._pidfd = -1
        if isinstance(self._kept, subprocess.Popen | HostProcess):
            self._kept.wait(AGENT_LIMIT_S)

    def _ends_within(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _first_pidfd(self) -> int:
        self._control.settimeout(AGENT_LIMIT_S)
        message, fds = _receive(self._control)
        if not message:
            self._control.close()
            with open(self._complaints, "rb") as complaints:
                complaints.seek(0)
                said = complaints.read().decode(errors="replace").strip()
            raise EnclosureGone(f"no namespaces: {said or 'the agent ended at once'}")
        return fds[0]

    def _ask(
        self, request: Mapping[str, object], fds: Sequence[int]
    ) -> tuple[socket.socket, dict[str, int], list[int]]:
        """Sends a request; returns the socket that answers, with the first answer and its files."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(AGENT_LIMIT_S)
        try:
            with theirs:
                message = json.dumps(request).encode()
                socket.send_fds(self._control, [message], [theirs.fileno(), *fds])
            answer, received = _receive(ours)
        except OSError as error:
            ours.close()
            if isinstance(error, ConnectionError) or error.errno == errno.EBADF:
                raise EnclosureGone("the agent has ended: nothing can be started there") from None
            raise
        if not answer:
            ours.close()
            raise EnclosureGone("the agent has ended: nothing can be started there")
        ours.settimeout(None)
        return ours, json.loads(answer), received


def environment() -> dict[str, str]:
    """Returns our variables, with the folders of root's programs on PATH."""
    return {**os.environ, "PATH": search_path()}


def _stream(number: int, wanted: Source) -> tuple[int, IO[str] | None]:
    """Returns what the process gets as this stream, and our end where it is a pipe."""
    if wanted == subprocess.PIPE:
        out, into = os.pipe2(os.O_CLOEXEC)
        if number == 0:
            return out, open(into, "w", encoding="utf-8")
        return into, open(out, encoding="utf-8", errors="replace")
    if wanted == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), None
    if wanted is None:
        return os.dup(number), None
    return os.dup(wanted if isinstance(wanted, int) else wanted.fileno()), None


def _receive(source: socket.socket) -> tuple[bytes, list[int]]:
    try:
        message, fds, _, _ = socket.recv_fds(source, _ANSWER_BYTES_MAX, 4, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return b"", []
    return message, fds
