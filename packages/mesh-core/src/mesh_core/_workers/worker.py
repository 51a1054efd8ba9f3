"""A worker, which serves its machine as a host to one job after another.

The worker itself only owns the port. A *session*, a separate process that ends with the job, serves
each job. The next job therefore inherits nothing from the previous one, except for imported
packages: see `mesh_core._processes.retained_template`.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from mesh_core._calls.coroutine_future import run_async
from mesh_core._calls.event_loop import loop_thread
from mesh_core._calls.own_thread import run_beside
from mesh_core._core import Listener
from mesh_core._processes.template_cache import TemplateCache
from mesh_core._security.errors import CredentialsError
from mesh_core._supervision.lifecycle import ENDED_BY_OWNER
from mesh_core._system.signals import on_signals
from mesh_core._workers.additional_sessions import GUEST_LIMIT_S, AdditionalSessions
from mesh_core._workers.listen_address import ListenAddress
from mesh_core._workers.status import report
from mesh_core._workers.worker_keys import worker_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from os import PathLike

    from mesh_core._calls.future import Future
    from mesh_core._hosts.address import Address


__all__ = ["Worker"]

_SESSION = """
import json, sys
from mesh_core._workers.session import Inheritance, main
main(Inheritance(**json.loads(sys.argv[1])))
"""
# Limits the restart rate, because a session that fails immediately is likely to fail again.
_PAUSE_S = 1.0
_END_LIMIT_S = 20.0


class Worker:
    """The port of a machine, and the sessions that serve jobs there.

    Args:
        address: The address to listen on, such as `tcp://*:26600`, `fd://3` or `DIAL@BIND`.
        credentials: The folder with the worker's credentials. Default: the credentials that the
            programs of its user share; the worker must then listen on loopback.
        leave_grace_s: How long `end` waits for the owners of jobs to stop their processes here, in
            seconds.

    Raises:
        ValueError: The address is malformed, or other machines could reach it without credentials.
        CredentialsError: The credentials do not exist, or other users can access them.
        OSError: The address is in use, or does not belong to this machine.
    """

    def __init__(
        self,
        address: str,
        credentials: str | PathLike[str] | None = None,
        leave_grace_s: float = 0.0,
    ) -> None:
        listen_address = ListenAddress.parse(address)
        bound = listen_address.bound
        self._leave_grace_s = leave_grace_s
        if credentials is None and not bound.is_loopback:
            raise ValueError(
                f"refused to listen on {bound} without credentials: anyone who reaches it "
                "could run code here; pass credentials, or listen on tcp://127.0.0.1"
            )
        # Empty for the credentials that the programs of the user share.
        self._folder: str = "" if credentials is None else os.path.abspath(credentials)
        # Each session reads the keys again, so that they can be replaced. This call only reports
        # errors early.
        worker_keys(self._folder)
        # The id is unique, also among workers that listen on this port later.
        self._id = secrets.token_hex(16)
        self._socket: socket.socket = listen_address.listen()
        self.address: Address = listen_address.reached_at(self._socket)
        self._sessions: list[subprocess.Popen[bytes]] = []
        self._template_cache: TemplateCache = TemplateCache()
        self._additional_sessions: AdditionalSessions = AdditionalSessions(
            bound.host, self._start_additional_session
        )
        self._is_ending = threading.Event()
        # Held while a session is started, so that no session starts after the end.
        self._starting = threading.Lock()

    def serve(self, *, until_shutdown: bool = False) -> None:
        """Serve one job after another until `end` is called.

        Args:
            until_shutdown: Whether to return also when the owner of a job shuts down its hosts.
        """
        between: Listener | None = None
        self._additional_sessions.begin()
        while True:
            started = time.monotonic()
            session = self._start_session(self._socket)
            if between is not None:
                between.close()
            if session is None:
                break
            status = session.wait()
            if status == ENDED_BY_OWNER and until_shutdown:
                break
            is_killed = status not in (0, ENDED_BY_OWNER)
            between = self._open_between() if is_killed else None
            if is_killed and time.monotonic() - started < _PAUSE_S:
                self._is_ending.wait(_PAUSE_S)
        self._close()

    def run(self, *, until_shutdown: bool) -> None:
        """Serve, and end on SIGTERM and SIGINT if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            self.serve(until_shutdown=until_shutdown)
            return
        with on_signals((signal.SIGTERM, signal.SIGINT), self.end):
            report(f"serves {self.address}")
            self.serve(until_shutdown=until_shutdown)

    def serve_concurrently(self) -> Future[None]:
        """Serve on a separate thread; cancelling the future ends the worker."""

        async def serve() -> None:
            try:
                await run_beside(self.serve)
            finally:
                await run_beside(self.end)

        return run_async(loop_thread(), serve())

    def _open_between(self) -> Listener | None:
        """Accept connections on the port until the next session does.

        After a session was killed, the owner of its job immediately queries the port for the
        reason.
        """
        if self._is_ending.is_set():
            return None
        try:
            keys = worker_keys(self._folder)
            return Listener(
                self._socket.fileno(), keys, "it has just lost a job, and is restarting"
            )
        except (CredentialsError, OSError, ValueError):
            # The next session reports the problem soon, or the worker has just ended.
            return None

    def _start_additional_session(self, listener: socket.socket) -> subprocess.Popen[bytes] | None:
        return self._start_session(listener, GUEST_LIMIT_S)

    def _start_session(
        self, listener: socket.socket, limit_s: float = math.inf
    ) -> subprocess.Popen[bytes] | None:
        """Start a session for the next job and wait until it listens; None if the worker is ending.

        Args:
            listener: The socket that receives the requests.
            limit_s: The maximum time that the session waits for a job, in seconds.
        """
        ready, listens = os.pipe()
        try:
            with self._starting:
                if self._is_ending.is_set():
                    return None
                latest = self._template_cache.latest
                fds = {
                    "listener": listener.fileno(),
                    "listens": listens,
                    "request_fd": self._additional_sessions.request_socket.fileno(),
                    "cache_inlet": self._template_cache.inlet.fileno(),
                    **({} if latest is None else {"retained_template": latest.fileno()}),
                }
                facts = {
                    "worker": os.getpid(),
                    "worker_id": self._id,
                    "folder": self._folder,
                    "limit_s": limit_s,
                    "leave_grace_s": self._leave_grace_s,
                }
                session = subprocess.Popen(
                    [sys.executable, "-c", _SESSION, json.dumps({**facts, **fds})],
                    pass_fds=list(fds.values()),
                    stdin=subprocess.DEVNULL,
                )
                self._sessions = [one for one in self._sessions if one.poll() is None]
                self._sessions.append(session)
            os.close(listens)
            listens = -1
            # EOF means that the session has closed the pipe or has exited.
            os.read(ready, 1)
            return session
        finally:
            os.close(ready)
            if listens >= 0:
                os.close(listens)

    def end(self) -> None:
        """End the sessions, and with them the processes of jobs here, and then `serve`.

        Owners can stop their processes themselves within the grace period. The worker ends
        immediately after that.
        """
        with self._starting:
            self._is_ending.set()
            sessions = list(self._sessions)
        for session in sessions:
            with suppress(ProcessLookupError):
                session.terminate()
        until = time.monotonic() + self._leave_grace_s + _END_LIMIT_S
        for session in sessions:
            try:
                session.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                session.kill()
        # `serve` does not close it, because the port must be free when this returns.
        self._close()

    def _close(self) -> None:
        self._additional_sessions.close()
        self._socket.close()
        self._template_cache.close()
