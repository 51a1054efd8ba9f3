"""The template cache of a worker, which keeps imported modules for the next job.

A retained template process holds the modules: see `mesh_core._processes.retained_template`.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
from contextlib import suppress
from typing import NamedTuple

from mesh_core._processes.link import message_pair
from mesh_core._processes.messages import SUPERVISOR_REQUEST_LEN_MAX, SupervisorRequest

__all__ = ["ForkedSupervisor", "TemplateCache", "TemplateCacheClient", "ask"]

_ANSWER_LIMIT_MS = 2_000


class TemplateCacheClient(NamedTuple):
    """The parts of the worker's template cache that a session uses."""

    cache_inlet: int
    """The descriptor through which templates leave retained templates."""
    latest: socket.socket | None
    """The socket of the most recent retained template, if any."""


class TemplateCache:
    """Template cache: receives retained templates and provides sessions with the latest one."""

    def __init__(self) -> None:
        self._inbox, self.inlet = message_pair()
        # Neither a worker nor a template ever waits for it.
        self._inbox.setblocking(False)
        self._latest: socket.socket | None = None

    @property
    def latest(self) -> socket.socket | None:
        """The socket of the latest retained template; earlier ones have exited."""
        while True:
            try:
                _, fds, _, _ = socket.recv_fds(self._inbox, 1, 1)
            except OSError:  # The socket is empty or closed.
                return self._latest
            for fd in fds:
                if self._latest is not None:
                    self._latest.close()
                self._latest = socket.socket(fileno=fd)

    def close(self) -> None:
        """End all retained templates."""
        latest = self.latest
        for sock in (self._inbox, self.inlet, latest):
            if sock is not None:
                sock.close()
        self._latest = None


def ask(
    template: socket.socket, wanted: SupervisorRequest, link: int, log: int
) -> ForkedSupervisor | None:
    """Request a supervisor from a retained template; return None if the template does not fit.

    Args:
        template: The socket of the retained template.
        wanted: The requirements of the supervisor.
        link: The supervisor's end of the socket pair with the session.
        log: The descriptor for the output of the supervisor and its templates.
    """
    read, write = os.pipe()
    try:
        message = pickle.dumps(wanted, pickle.HIGHEST_PROTOCOL)
        if len(message) > SUPERVISOR_REQUEST_LEN_MAX:
            return None
        try:
            socket.send_fds(template, [message], [link, log, write])
        except OSError:
            return None
        os.close(write)
        write = -1
        poll = select.poll()
        poll.register(read, select.POLLIN)
        answer = os.read(read, 32) if poll.poll(_ANSWER_LIMIT_MS) else b""
        return ForkedSupervisor(int(answer)) if answer else None
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


class ForkedSupervisor:
    """Handle of a supervisor that was forked by a retained template instead of its user."""

    def __init__(self, pid: int) -> None:
        self.pid: int = pid
        self._handle: int = os.pidfd_open(pid)

    def kill(self) -> None:
        """Kill the supervisor."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> int | None:
        """Wait for its exit and return None, because only parents get the exit status."""
        if self._handle >= 0:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            poll.poll()
            os.close(self._handle)
            self._handle = -1
        return None
