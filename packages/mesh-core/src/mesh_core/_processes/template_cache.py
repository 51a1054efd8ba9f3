"""Where a worker keeps what the last job has imported, and how the next one gets it.

The modules are in a process, a seed: see `mesh_core._processes.retained_template`.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass

from mesh_core._processes.link import message_pair
from mesh_core._processes.messages import SPROUT_LEN_MAX, Sprout

__all__ = ["Seedbed", "SeededProcess", "Seeds", "ask"]

_ANSWER_LIMIT_MS = 2_000


@dataclass(frozen=True)
class Seeds:
    """What a session has of its worker's seedbed."""

    bed: int
    """The descriptor of where templates leave seeds."""
    latest: socket.socket | None
    """The socket of the last one that was left, if any."""


class Seedbed:
    """Where templates leave seeds with their worker, and from where sessions get the last."""

    def __init__(self) -> None:
        self._inbox, self.inlet = message_pair()
        # Neither a worker nor a template ever waits at it.
        self._inbox.setblocking(False)
        self._latest: socket.socket | None = None

    @property
    def latest(self) -> socket.socket | None:
        """The socket of the last seed that was left; those before have ended."""
        while True:
            try:
                _, fds, _, _ = socket.recv_fds(self._inbox, 1, 1)
            except OSError:  # There is none, or the bed is closed.
                return self._latest
            for fd in fds:
                if self._latest is not None:
                    self._latest.close()
                self._latest = socket.socket(fileno=fd)

    def close(self) -> None:
        """Ends all seeds."""
        latest = self.latest
        for sock in (self._inbox, self.inlet, latest):
            if sock is not None:
                sock.close()
        self._latest = None


def ask(seed: socket.socket, wanted: Sprout, link: int, log: int) -> SeededProcess | None:
    """Has a seed fork a warden; returns it, or None where the seed does not fit.

    Args:
        seed: The socket of the seed.
        wanted: What is wanted.
        link: The warden's end of the socket pair with the session.
        log: What the warden and its templates print goes there.
    """
    read, write = os.pipe()
    try:
        message = pickle.dumps(wanted, pickle.HIGHEST_PROTOCOL)
        if len(message) > SPROUT_LEN_MAX:
            return None
        try:
            socket.send_fds(seed, [message], [link, log, write])
        except OSError:
            return None
        os.close(write)
        write = -1
        poll = select.poll()
        poll.register(read, select.POLLIN)
        answer = os.read(read, 32) if poll.poll(_ANSWER_LIMIT_MS) else b""
        return SeededProcess(int(answer)) if answer else None
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


class SeededProcess:
    """A warden that a seed has forked, for who would otherwise be its parent."""

    def __init__(self, pid: int) -> None:
        self.pid: int = pid
        self._handle: int = os.pidfd_open(pid)

    def kill(self) -> None:
        """Kills it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> int | None:
        """Waits for its end, and gives no status: that is for parents."""
        if self._handle >= 0:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            poll.poll()
            os.close(self._handle)
            self._handle = -1
        return None
