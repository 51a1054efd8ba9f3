"""Linux namespaces with an agent in them that starts processes there.

No object in an enclosure has a name outside it, so nothing can be left behind: when the agent
exits, the kernel kills all processes in it, and removes the network devices and mounts with them.
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

#: Time limit for the agent to start, to reply and to exit.
AGENT_LIMIT_S = 30.0
_ANSWER_BYTES_MAX = 4096
_REQUEST_BYTES_MAX = 1 << 20

#: The namespaces that every enclosure has for itself.
NAMESPACES = ("--net", "--pid", "--mount", "--uts", "--ipc")

Source = IO[str] | int | None


class Start(Protocol):
    """Starts a command in the background with this standard input and standard error."""

    def __call__(self, argv: Sequence[str], stdin: socket.socket, stderr: int, /) -> object:
        """Start the command; return an object that must be kept until the command has exited."""


class EnclosureGone(RuntimeError):
    """The agent and all processes that it started have exited; no process can be started."""


class Enclosure:
    """A set of namespaces that exists as long as its agent."""

    def __init__(self, start: Start, *options: str) -> None:
        """Start the agent in new namespaces and wait until it is ready.

        Args:
            start: Starts a command in the namespaces in which the new ones are nested.
            options: Additional options for `unshare`.

        Raises:
            EnclosureGone: The agent did not start; the message contains its standard error.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES_MAX)
        unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", *options]
        # Its standard error would otherwise mix with the output of the tests.
        self._complaints = os.memfd_create("complaints")
        with theirs:
            command = [*unshare, sys.executable, "-I", "-S", str(AGENT)]
            self._kept = start(command, theirs, self._complaints)
        self._control = ours
        self._processes: list[HostProcess] = []
        self._lock = threading.Lock()
        self._pidfd = self._first_pidfd()
        #: The pids of the agent, from our namespace inwards; the last is 1.
        self.pids = pids_of(self._pidfd)

    @property
    def is_alive(self) -> bool:
        """Whether the agent is running."""
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
        """Start a process in the enclosure; a stream of None is inherited, as with `subprocess`.

        Raises:
            OSError: The process cannot be started.
            EnclosureGone: The agent has exited.
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
        """Run a process in the enclosure to completion, and return its output.

        Raises:
            subprocess.CalledProcessError: The process failed and `check` is set; a note has the
                output.
            subprocess.TimeoutExpired: The process took too long and was killed.
            OSError: The process cannot be started.
            EnclosureGone: The agent has exited.
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
        """Send a signal to all processes of the enclosure except the agent, at the same moment.

        Raises:
            EnclosureGone: The agent has exited.
        """
        report, _, _ = self._ask({"act": "signal_all", "signal": number}, [])
        report.close()

    def open_socket(self, family: socket.AddressFamily, kind: socket.SocketKind) -> socket.socket:
        """Return a socket that we own and that is in the network namespace of the enclosure.

        Raises:
            EnclosureGone: The agent has exited.
        """
        request = {"act": "socket", "family": family, "kind": kind}
        report, _, fds = self._ask(request, [])
        report.close()
        return socket.socket(fileno=fds[0])

    def follow(self, pid: int) -> None:
        """Make the agent exit with that process, even if other processes keep its socket open.

        Raises:
            EnclosureGone: The agent has exited.
        """
        pidfd = os.pidfd_open(pid)
        report, _, _ = self._ask({"act": "follow"}, [pidfd])
        os.close(pidfd)
        report.close()

    def kill(self) -> None:
        """Kill all processes of the enclosure at once, and return when they have exited."""
        if self._pidfd < 0:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # The agent has already exited.
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
        """Send a request; return the reply socket, the first reply and its file descriptors."""
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
    """Return our environment variables, with the system administration folders on PATH."""
    return {**os.environ, "PATH": search_path()}


def _stream(number: int, wanted: Source) -> tuple[int, IO[str] | None]:
    """Return the stream for the process, and our end if it is a pipe."""
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
