"""A worker: serves its machine as a host, to one job after another.

The worker itself only keeps the port. Each job is served by a session, a process of its own that
ends with the job, so that nothing of one job is left for the next, whatever happened in it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

from mesh_core._address import Address
from mesh_core._trust import Credentials, CredentialsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike
    from types import FrameType

    from mesh_core._core import Gate

__all__ = ["ENDED_BY_OWNER", "Worker", "run"]

# The exit status of a session whose owner has shut the worker down.
ENDED_BY_OWNER = 10
_SESSION = """
import sys
from mesh_core._worker_session import main
main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
"""
# A session that fails at once fails again: not too often.
_PAUSE_S = 1.0
_END_LIMIT_S = 20.0


class Worker:
    """The port of a machine, and the sessions that serve jobs there.

    Args:
        address: Where to listen, such as `tcp://*:26600`.
        credentials: The folder with the worker's credentials.

    Raises:
        ValueError: The address is malformed, or could be reached from other machines although
            there are no credentials.
        CredentialsError: The credentials are not there, or others can use them.
        OSError: The address is taken, or is none of this machine.
    """

    def __init__(self, address: str, credentials: str | PathLike[str] | None = None) -> None:
        asked = Address.parse(address)
        self._credentials: str = ""
        if credentials is not None:
            # Read by each session anew, so that they can be replaced; now, to say what is wrong.
            Credentials.load(credentials)
            self._credentials = os.path.abspath(credentials)
        elif not asked.is_loopback:
            raise ValueError(
                f"refused to listen on {asked} without credentials: whoever reaches it could run "
                "code here; give credentials, or listen on tcp://127.0.0.1"
            )
        self._socket: socket.socket = asked.listen()
        host = socket.gethostname() if asked.host == "*" else asked.host
        self.address: Address = Address(host, self._socket.getsockname()[1])
        self._session: subprocess.Popen[bytes] | None = None
        self._is_ending = threading.Event()
        # Held while a session is started, so that none is after the end.
        self._starting = threading.Lock()

    def serve(self, *, until_shutdown: bool = False) -> None:
        """Serves one job after another until `end` is called.

        Args:
            until_shutdown: Return also when the owner of a job shuts its hosts down.
        """
        between: Gate | None = None
        while True:
            started = time.monotonic()
            session = self._start_session()
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
        self._socket.close()

    def _open_between(self) -> Gate | None:
        """Answers at the port until the next session does.

        The owner of the job of a session that was killed asks at once what has become of it.
        """
        if self._is_ending.is_set():
            return None
        from mesh_core._core import Gate

        try:
            keys = Credentials.load(self._credentials)._keys if self._credentials else None
            return Gate(self._socket.fileno(), keys, "it has just lost a job, and begins anew")
        except (CredentialsError, OSError, ValueError):
            # The next session says it, in some moments; or the worker has just ended.
            return None

    def _start_session(self) -> subprocess.Popen[bytes] | None:
        """Starts what serves the next job, until it listens; None when the worker is to end."""
        ready, listens = os.pipe()
        try:
            with self._starting:
                if self._is_ending.is_set():
                    return None
                number = self._socket.fileno()
                words = [str(number), self._credentials, str(os.getpid()), str(listens)]
                session = self._session = subprocess.Popen(
                    [sys.executable, "-c", _SESSION, *words],
                    pass_fds=[number, listens],
                    stdin=subprocess.DEVNULL,
                )
            os.close(listens)
            listens = -1
            # The end of the pipe: it has closed it, or has ended.
            os.read(ready, 1)
            return session
        finally:
            os.close(ready)
            if listens >= 0:
                os.close(listens)

    def end(self) -> None:
        """Ends the session and with it the job's processes here, and then `serve`."""
        with self._starting:
            self._is_ending.set()
            session = self._session
        if session is not None:
            with suppress(ProcessLookupError):
                session.terminate()
            try:
                session.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                session.kill()
        # Not left to `serve`: when this returns, the port is free again.
        self._socket.close()


def run(worker: Worker, *, until_shutdown: bool) -> None:
    """Serves, and ends on signals where these can be had."""
    if threading.current_thread() is not threading.main_thread():
        worker.serve(until_shutdown=until_shutdown)
        return

    def end(number: int, _frame: FrameType | None) -> None:
        # Off the main thread, which waits for the session.
        threading.Thread(target=worker.end, daemon=True).start()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        print(f"mesh worker serves {worker.address}", flush=True)
        worker.serve(until_shutdown=until_shutdown)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
