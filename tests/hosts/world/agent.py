"""The first process of an enclosure: it starts processes and reports their exit.

It is started as `python -I -S agent.py`, with its end of a socket as standard input. It is process
1 of its namespace: when it exits, the kernel kills all processes that it started. It exits when its
owner does.

A request is a JSON message with file descriptors; the first of them is a socket for the reply.
"""

import array
import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

REQUEST_BYTES_MAX = 1 << 20
FDS_MAX = 8


class Agent:
    """Serves one owner until the owner closes the socket or dies."""

    def __init__(self, control: socket.socket, children: int) -> None:
        """Create an agent with a socket to the owner and a descriptor that signals child exits."""
        self._control = control
        self._children = children
        self._owner: int | None = None
        self._reports: dict[int, socket.socket] = {}

    def serve(self) -> None:
        """Serve requests and return when the owner has closed its socket."""
        _send(self._control, {"ready": True}, [os.pidfd_open(os.getpid())])
        poll = select.poll()
        for one in (self._control.fileno(), self._children):
            poll.register(one, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._owner in ready:
                return
            if self._children in ready:
                os.read(self._children, 4096)
                self._reap()
            if self._control.fileno() in ready:
                message, fds = _receive(self._control)
                if not message:
                    return
                self._act(json.loads(message), fds)
                if self._owner is not None:
                    poll.register(self._owner, select.POLLIN)

    def _act(self, request: dict[str, Any], fds: list[int]) -> None:
        report = socket.socket(fileno=fds.pop(0))
        if request["act"] == "spawn":
            self._spawn(request, fds, report)
        elif request["act"] == "signal_all":
            # If no process exists, all of them have been signalled.
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, request["signal"])
            _answer(report, {"status": 0})
        elif request["act"] == "socket":
            _lend_socket(request, report)
        elif request["act"] == "follow":
            self._owner = fds.pop()
            _answer(report, {"status": 0})
        for fd in fds:
            os.close(fd)

    def _spawn(self, request: dict[str, Any], fds: list[int], report: socket.socket) -> None:
        try:
            child = subprocess.Popen(
                request["argv"],
                stdin=fds[0],
                stdout=fds[1],
                stderr=fds[2],
                env=request["env"],
                cwd=request["cwd"],
                start_new_session=True,
            )
        except OSError as error:
            code = error.errno or errno.EIO
            _answer(report, {"errno": code, "path": error.filename or request["argv"][0]})
            return
        # The agent reaps all children below, including children of other processes; Popen must not.
        child.returncode = 0
        pidfd = os.pidfd_open(child.pid)
        with contextlib.suppress(OSError):
            _send(report, {"pid": child.pid}, [pidfd])
        os.close(pidfd)
        self._reports[child.pid] = report

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if report := self._reports.pop(pid, None):
                _answer(report, {"status": os.waitstatus_to_exitcode(status)})


def _lend_socket(request: dict[str, Any], report: socket.socket) -> None:
    """Create a socket in this network namespace and pass it to the owner."""
    made = socket.socket(request["family"], request["kind"])
    with made, report, contextlib.suppress(OSError):
        _send(report, {"status": 0}, [made.fileno()])


def _answer(report: socket.socket, answer: dict[str, Any]) -> None:
    with report, contextlib.suppress(OSError):
        _send(report, answer, [])


def _send(to: socket.socket, message: dict[str, Any], fds: list[int]) -> None:
    socket.send_fds(to, [json.dumps(message).encode()], fds, socket.MSG_NOSIGNAL)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    try:
        message, ancillary, _, _ = control.recvmsg(
            REQUEST_BYTES_MAX, socket.CMSG_SPACE(FDS_MAX * 4), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionError:
        return b"", []
    fds = array.array("i")
    for _, _, content in ancillary:
        fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return message, list(fds)


def main() -> None:
    """Serve the socket that is standard input."""
    wake_out, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    control = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, sys.stdin.fileno())
    Agent(control, wake_out).serve()
    # No cleanup is necessary: the kernel kills everything that this process started.
    os._exit(0)


if __name__ == "__main__":
    main()
