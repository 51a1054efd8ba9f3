"""The client side of remote operations: starts one in another process and polls its state."""

from __future__ import annotations

import os
import struct
import threading
import time
from typing import TYPE_CHECKING

from mesh_rdma._completions.completion import ThreadedCompletion
from mesh_rdma._completions.thread_pool import run_in_thread
from mesh_rdma._errors import RDMACancelled, RDMAError, RDMATimeout, RDMATransportError
from mesh_rdma._operations.pull import begin_local_pulls, encode_pulls
from mesh_rdma._operations.server import HEAD, OPERATION, Command, State
from mesh_rdma._requests.error_encoding import decode_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core.spi import Completion
    from mesh_rdma import _core
    from mesh_rdma._operations.pull import Pull

__all__ = ["PULLS", "RemoteOperation", "Report", "begin_pulls"]

#: The kind of operation that runs pulls.
PULLS = b"p"
_BEGIN = struct.Struct("<cd")
_STATE = struct.Struct("<BQ")
#: How long the other process may take to respond to a request.
_RESPONSE_S = 10.0
#: How long after the deadline the other process may take to report its expiration.
_GRACE_S = 1.0
#: The state is polled after a sixteenth of the time elapsed so far.
_PAUSE_SHARE = 1 / 16
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.0001, 0.02
#: The maximum number of pulls in one request.
_PULLS_MAX = 1024

_CANCELLED = "the transfer was cancelled; no more bytes of it are written"
_LATE = "the transfer was not done in time; no more bytes of it are written"


class Report:
    """The last reported state of an operation.

    Attributes:
        state: The state.
        progress: The bytes copied so far, for kinds that count them.
        extra: Bytes that belong to the state.
    """

    def __init__(self, response: bytes) -> None:
        number, self.progress = _STATE.unpack_from(response)
        self.state = State(number)
        self.extra = response[_STATE.size :]


class RemoteOperation(ThreadedCompletion):
    """An operation that another process runs, as a `mesh_core.spi.Completion`.

    Args:
        at: A buffer of the process that runs it.
        kind: The kind of operation.
        payload: The encoded parameters.
        timeout: The limit in seconds; None means no limit.
        memory_owner: An object that this process keeps alive until the operation has ended.
    """

    def __init__(
        self,
        at: _core.Handle,
        kind: bytes,
        payload: bytes,
        timeout: float | None,
        memory_owner: object = None,
    ) -> None:
        super().__init__()
        self._at = at
        self._memory_owner = memory_owner
        self._number = os.urandom(16)
        self._until = None if timeout is None else time.monotonic() + timeout
        self._payload = _BEGIN.pack(kind, -1.0 if timeout is None else timeout) + payload
        self._wake = threading.Event()
        self._is_cancelled = False

    def start(self) -> None:
        """Start the operation, without waiting for a response."""
        run_in_thread(self._run)

    def cancel(self) -> bool:
        """Cancel the operation; after this returns no byte is written."""
        with self._lock:
            is_first = not self._is_cancelled and not self._done.is_set()
            self._is_cancelled = True
        self._wake.set()
        self._done.wait()
        return is_first and isinstance(self._error, RDMACancelled)

    def request(self, command: bytes, body: bytes = b"") -> Report:
        """Send a request about this operation.

        Raises:
            RDMAPeerDied: The process has died.
            RDMATimeout: The process did not respond in time.
        """
        limit = _RESPONSE_S
        if self._until is not None and command != Command.END:
            limit = min(limit, max(self._until - time.monotonic(), 0.0) + _GRACE_S)
        response = self._at.exchange(OPERATION, HEAD.pack(command, self._number) + body, limit)
        return Report(response)

    def on_report(self, report: Report) -> Report:
        """Handle a report; called while the operation has not ended.

        Returns:
            The latest report: the same one, or the response to a request sent here.
        """
        return report

    def _run(self) -> None:
        error: BaseException | None
        try:
            error = self._poll_until_done()
        except Exception as failure:
            error = failure
        self._memory_owner = None
        self._settle(error)

    def _poll_until_done(self) -> BaseException | None:
        """Poll until the operation has ended; return its error."""
        if self._is_cancelled:
            return RDMACancelled(_CANCELLED)
        begun = time.monotonic()
        report = self.request(Command.BEGIN, self._payload)
        del self._payload
        while True:
            outcome = _outcome_of(report) or _outcome_of(self.on_report(report))
            if outcome is not None:
                return outcome.error
            now = time.monotonic()
            if self._is_cancelled:
                return self._end(RDMACancelled(_CANCELLED))
            if self._until is not None and now > self._until + _GRACE_S:
                return self._end(RDMATimeout(_LATE))
            pause = min(max((now - begun) * _PAUSE_SHARE, _PAUSE_S_MIN), _PAUSE_S_MAX)
            self._wake.wait(pause)
            if not self._is_cancelled:
                report = self.request(Command.STATE)

    def _end(self, why: RDMAError) -> BaseException | None:
        outcome = _outcome_of(self.request(Command.END))
        if outcome is None:
            return RDMATransportError("the process did not cancel the operation in time")
        # It may have ended before the cancellation arrived.
        return why if isinstance(outcome.error, RDMACancelled) else outcome.error


class _Outcome:
    def __init__(self, error: RDMAError | None) -> None:
        self.error = error


def _outcome_of(report: Report) -> _Outcome | None:
    if report.state is State.DONE:
        return _Outcome(None)
    if report.state is State.FAILED:
        return _Outcome(decode_error(report.extra))
    if report.state is State.UNKNOWN:
        return _Outcome(RDMACancelled("the process no longer has the transfer"))
    return None


def begin_pulls(pulls: Sequence[Pull], timeout: float | None) -> list[Completion[None]]:
    """Start pulls into buffers of one process, which runs them.

    Raises:
        RDMAError: The process is this one, and a source cannot be reached.
    """
    at = pulls[0].ours
    if at.is_ours:
        return [begin_local_pulls(pulls, timeout)]
    operations = []
    for first in range(0, len(pulls), _PULLS_MAX):
        some = pulls[first : first + _PULLS_MAX]
        operations.append(RemoteOperation(at, PULLS, encode_pulls(some), timeout, some))
    for operation in operations:
        operation.start()
    return list(operations)
