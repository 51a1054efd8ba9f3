"""Something that another process does for this one, with buffers of its own."""

from __future__ import annotations

import os
import struct
import threading
import time
from typing import TYPE_CHECKING

from mesh_rdma._completions.completion import ThreadedCompletion
from mesh_rdma._completions.thread_pool import run_in_thread
from mesh_rdma._errors import RDMACancelled, RDMAError, RDMATimeout, RDMATransportError
from mesh_rdma._operations.pull import begin_here, encode_pulls
from mesh_rdma._operations.server import ERRAND, HEAD, Ask, State
from mesh_rdma._requests.error_encoding import decode_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core.spi import Completion
    from mesh_rdma import _core
    from mesh_rdma._operations.pull import Pull

__all__ = ["PULLS", "Errand", "Report", "begin_pulls"]

#: The kind of errand that is copies.
PULLS = b"p"
_BEGIN = struct.Struct("<cd")
_STATE = struct.Struct("<BQ")
#: How long the other process may take to answer a question.
_ANSWER_S = 10.0
#: How much longer than asked for the other process may take to say that its time is over.
_GRACE_S = 1.0
#: A state is asked for after a sixteenth of the time that it has taken so far.
_PAUSE_SHARE = 1 / 16
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.0001, 0.02
#: The most copies that go into one question.
_PULLS_MAX = 1024

_CANCELLED = "the transfer was cancelled; no byte of it is written any more"
_LATE = "the transfer was not done in time; no byte of it is written any more"


class Report:
    """What the other process has said last.

    Attributes:
        state: How far it is.
        progress: How many bytes are there, where that is counted.
        extra: Whatever belongs to the state.
    """

    def __init__(self, answer: bytes) -> None:
        number, self.progress = _STATE.unpack_from(answer)
        self.state = State(number)
        self.extra = answer[_STATE.size :]


class Errand(ThreadedCompletion):
    """One errand, as a `mesh_core.spi.Completion`.

    Args:
        at: A buffer of the process that is to do it.
        kind: What it is.
        order: All that the process needs to know.
        timeout: The seconds it may take, from now on.
        keeper: What this process must hold meanwhile.
    """

    def __init__(
        self,
        at: _core.Handle,
        kind: bytes,
        order: bytes,
        timeout: float | None,
        keeper: object = None,
    ) -> None:
        super().__init__()
        self._at = at
        self._keeper = keeper
        self._number = os.urandom(16)
        self._until = None if timeout is None else time.monotonic() + timeout
        self._order = _BEGIN.pack(kind, -1.0 if timeout is None else timeout) + order
        self._wake = threading.Event()
        self._is_cancelled = False

    def start(self) -> None:
        """Has it begin, without waiting for an answer."""
        run_in_thread(self._run)

    def cancel(self) -> bool:
        """Ends it; when this returns nothing is written any more."""
        with self._lock:
            is_first = not self._is_cancelled and not self._done.is_set()
            self._is_cancelled = True
        self._wake.set()
        self._done.wait()
        return is_first and isinstance(self._error, RDMACancelled)

    def ask(self, what: bytes, body: bytes = b"") -> Report:
        """Asks the process about it.

        Raises:
            RDMAPeerDied: It is gone.
            RDMATimeout: It does not answer.
        """
        limit = _ANSWER_S
        if self._until is not None and what != Ask.END:
            limit = min(limit, max(self._until - time.monotonic(), 0.0) + _GRACE_S)
        answer = self._at.exchange(ERRAND, HEAD.pack(what, self._number) + body, limit)
        return Report(answer)

    def hear(self, report: Report) -> Report:
        """Does something about a state in which it is not done.

        Returns:
            What the process has said last: it is not said again where that was the end.
        """
        return report

    def _run(self) -> None:
        error: BaseException | None
        try:
            error = self._follow()
        except Exception as failure:
            error = failure
        self._keeper = None
        self._settle(error)

    def _follow(self) -> BaseException | None:
        """Asks until it has ended; gives what it ended with."""
        if self._is_cancelled:
            return RDMACancelled(_CANCELLED)
        begun = time.monotonic()
        report = self.ask(Ask.BEGIN, self._order)
        del self._order
        while True:
            ended = _ended(report) or _ended(self.hear(report))
            if ended is not None:
                return ended.error
            now = time.monotonic()
            if self._is_cancelled:
                return self._end(RDMACancelled(_CANCELLED))
            if self._until is not None and now > self._until + _GRACE_S:
                return self._end(RDMATimeout(_LATE))
            pause = min(max((now - begun) * _PAUSE_SHARE, _PAUSE_S_MIN), _PAUSE_S_MAX)
            self._wake.wait(pause)
            if not self._is_cancelled:
                report = self.ask(Ask.STATE)

    def _end(self, why: RDMAError) -> BaseException | None:
        ended = _ended(self.ask(Ask.END))
        if ended is None:
            return RDMATransportError("the process goes on with what it was told to end")
        # It may have been done before it heard of it.
        return why if isinstance(ended.error, RDMACancelled) else ended.error


class _Ended:
    def __init__(self, error: RDMAError | None) -> None:
        self.error = error


def _ended(report: Report) -> _Ended | None:
    if report.state is State.DONE:
        return _Ended(None)
    if report.state is State.FAILED:
        return _Ended(decode_error(report.extra))
    if report.state is State.UNKNOWN:
        return _Ended(RDMACancelled("the process does not know of the transfer any more"))
    return None


def begin_pulls(pulls: Sequence[Pull], timeout: float | None) -> list[Completion[None]]:
    """Has copies done, all to buffers of one process, by that process.

    Raises:
        RDMAError: It is this process, and a source cannot be reached.
    """
    at = pulls[0].ours
    if at.is_ours:
        return [begin_here(pulls, timeout)]
    errands = []
    for first in range(0, len(pulls), _PULLS_MAX):
        some = pulls[first : first + _PULLS_MAX]
        errands.append(Errand(at, PULLS, encode_pulls(some), timeout, some))
    for errand in errands:
        errand.start()
    return list(errands)
