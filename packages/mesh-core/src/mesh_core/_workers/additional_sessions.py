"""Additional sessions of a worker, each with its own process and port.

They serve programs that inspect hosts while a job runs there, such as a shell or a profiler. The
worker's port belongs to the session of the job. If that session receives a request for an
additional session, it requests one from the worker, and replies with its port.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
from contextlib import suppress

from mesh_core._hosts.address import Address
from mesh_core._hosts.attach_request import BESIDE, AttachRequest
from mesh_core._processes.link import message_pair

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core._core import IncomingRequest

__all__ = ["GUEST_LIMIT_S", "AdditionalSessions", "SessionRedirector"]

GUESTS_MAX = 16
# How long an additional session waits for its program.
GUEST_LIMIT_S = 20.0
_START_LIMIT_MS = 15_000


class AdditionalSessions:
    """The worker's side: starts additional sessions.

    Args:
        host: The address of this machine on which the worker listens.
        start: Starts a session that serves a listening socket; returns None if the worker is
            ending.
    """

    def __init__(
        self, host: str, start: Callable[[socket.socket], subprocess.Popen[bytes] | None]
    ) -> None:
        self._host = host
        self._start = start
        self._requests, self.request_socket = message_pair()
        self._sessions: list[subprocess.Popen[bytes]] = []
        self._thread = threading.Thread(target=self._run, name="mesh-sessions", daemon=True)

    def begin(self) -> None:
        """Start to serve requests of sessions."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving requests; may be called more than once."""
        with suppress(OSError):
            self._requests.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join(_START_LIMIT_MS / 1000)
        self._requests.close()
        self.request_socket.close()

    def _run(self) -> None:
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(self._requests, 1, 1)
            except OSError:
                return
            if not message:
                return
            for answer in fds:
                with open(answer, "wb", buffering=0) as stream, suppress(OSError):
                    stream.write(self._admit().encode())

    def _admit(self) -> str:
        """Start a session; return its port, or the reason why none was started."""
        self._sessions = [one for one in self._sessions if one.poll() is None]
        if len(self._sessions) >= GUESTS_MAX:
            return f"it already serves {GUESTS_MAX} additional programs"
        try:
            with Address(self._host, 0).listen() as listener:
                port = listener.getsockname()[1]
                session = self._start(listener)
        except OSError as error:
            return f"it cannot serve one more program: {error}"
        if session is None:
            return "it is shutting down"
        self._sessions.append(session)
        threading.Thread(target=session.wait, name="mesh-guest-end", daemon=True).start()
        return str(port)


class SessionRedirector:
    """A session's side: redirects requests for an additional session.

    Args:
        request_fd: The descriptor for requests to the worker.
    """

    def __init__(self, request_fd: int) -> None:
        self._request_socket = socket.socket(fileno=request_fd)

    def takes(self, caller: IncomingRequest) -> bool:
        """Reply if the request is for an additional session; return whether it is."""
        try:
            request = AttachRequest.decode(caller.body)
        except ValueError:
            return False
        if request.verb != BESIDE or caller.role == "worker":
            return False
        # A separate thread, because other requests may arrive at the same time.
        threading.Thread(target=self._answer, args=(caller,), daemon=True).start()
        return True

    def _answer(self, caller: IncomingRequest) -> None:
        text = self._ask()
        with suppress(OSError):
            caller.reply(text.isdecimal(), text.encode())

    def _ask(self) -> str:
        read, write = os.pipe()
        try:
            try:
                socket.send_fds(self._request_socket, [b"g"], [write])
            except OSError:
                return "its worker has ended"
            finally:
                os.close(write)
            poll = select.poll()
            poll.register(read, select.POLLIN)
            answer = os.read(read, 1024) if poll.poll(_START_LIMIT_MS) else b""
            return answer.decode() or "its worker is too busy to serve one more program"
        finally:
            os.close(read)
