"""The template process of a host, which has loaded the engine and forks query processes.

A fork is ready in milliseconds, while a new interpreter takes a second to load Arrow and
DataFusion. A query process can therefore be killed at any time. The template itself runs no query:
it has one thread, and waits for fork requests, for children that have exited, and for the exit of
its parent.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress

from mesh_telemetry._query_process.frames import FORK
from mesh_telemetry._query_process.process import run

__all__ = ["main"]

_NAME = b"mesh-query"
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_MESSAGE_LEN_MAX = 64


def main() -> None:
    """Serve the parent until it closes the connection, whose descriptor is the second argument.

    The first argument is the host's configuration for `run`, as JSON.
    """
    host = json.loads(sys.argv[1])
    control = socket.socket(fileno=int(sys.argv[2]))
    # Inherited from the telemetry process, so SIGINT was also ignored while the engine was loaded.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(_PR_SET_NAME, ctypes.c_char_p(_NAME))
    # A garbage collection in a child would copy memory pages that it shares with the template.
    gc.collect()
    gc.freeze()
    template = _Template(control)
    connection = template.serve()
    if connection is not None:
        control.close()
        run(connection, host)


class _Template:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: set[int] = set()

    def serve(self) -> socket.socket | None:
        """Serve until the parent has exited; in a child, return its connection immediately."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == woken:
                        with suppress(BlockingIOError):
                            os.read(woken, _MESSAGE_LEN_MAX)
                        self._reap()
                        continue
                    descriptors = self._request()
                    if descriptors is None:
                        self._kill_children()
                        return None
                    if not self._fork(descriptors):
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        os.close(woken)
                        os.close(wake)
                        return socket.socket(fileno=descriptors[0])

    def _request(self) -> list[int] | None:
        """Receive the descriptors for a new child; return None when the parent has exited."""
        try:
            message, ancillary, _, _ = self._control.recvmsg(
                _MESSAGE_LEN_MAX, socket.CMSG_LEN(2 * array.array("i").itemsize)
            )
        except OSError:
            return None
        descriptors = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data)
        return list(descriptors) if message == FORK and len(descriptors) == 2 else None

    def _fork(self, descriptors: list[int]) -> bool:
        """Fork a child and report its pid; return whether this is the parent."""
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._children.add(pid)
            for descriptor in descriptors:
                os.close(descriptor)
            self._report("forked", pid, 0)
            return True
        _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)
        os.dup2(descriptors[1], 2)
        os.close(descriptors[1])
        return False

    def _reap(self) -> None:
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._children.discard(pid)
                self._report("exited", pid, os.waitstatus_to_exitcode(status))

    def _report(self, what: str, pid: int, code: int) -> None:
        with suppress(OSError):
            self._control.send(f"{what} {pid} {code}".encode())

    def _kill_children(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")


if __name__ == "__main__":
    main()
