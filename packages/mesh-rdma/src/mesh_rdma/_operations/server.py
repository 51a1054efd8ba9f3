"""What other processes have asked this one to do, while it is being done.

A process that holds a buffer asks its owner to fill it (`remote_operation`). The owner answers at
once and works in a thread; the other one asks for the state now and then. Nobody's connection is blocked
meanwhile, and the end of either process is seen by the other one's next question.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from enum import IntEnum
from typing import TYPE_CHECKING

from mesh_rdma._completions.thread_pool import run_in_thread
from mesh_rdma._errors import RDMAError
from mesh_rdma._operations.pull import begin_here, pulls_of
from mesh_rdma._requests.error_encoding import encode_error
from mesh_rdma._requests.handlers import register_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core.spi import Completion

__all__ = ["ERRAND", "HEAD", "Ask", "State", "Work", "answer_state", "handle_kind"]

#: The name that such questions go to.
ERRAND = "errand"
#: What a question begins with: what is asked for, and about which errand.
HEAD = struct.Struct("<c16s")
_BEGIN = struct.Struct("<cd")
_STATE = struct.Struct("<BQ")
#: How long the first answer may wait for short work, so that it needs no second question.
_AT_ONCE_S = 0.002
#: Who has not asked for so long is gone.
_PATIENCE_S = 60.0


class Ask:
    """What is asked for."""

    BEGIN = b"b"
    STATE = b"s"
    END = b"e"


class State(IntEnum):
    """How far an errand is."""

    RUNNING = 0
    DONE = 1
    FAILED = 2
    #: It needs another source to go on.
    WAITING = 3
    #: Nobody knows it.
    UNKNOWN = 4


class Work:
    """One errand: a thread runs it, questions look at it.

    Attributes:
        extra: What the asker is told besides the state.
        is_kept: Whether it is known until the asker ends it, also when it is done.
    """

    def __init__(self, limit: float | None) -> None:
        self.until = None if limit is None else time.monotonic() + limit
        self.asked = time.monotonic()
        self.state = State.RUNNING
        self.progress = 0
        self.extra = b""
        self.done = threading.Event()
        self.is_wanted = True
        self.is_kept = False

    def left(self) -> float | None:
        """Gives the seconds that are left; None where there is no limit."""
        return None if self.until is None else max(self.until - time.monotonic(), 0.0)

    def run(self) -> None:
        """Does it, and keeps how it ended."""
        try:
            self.work()
        except Exception as error:
            self.extra = encode_error(error)
            self.state = State.FAILED
        else:
            self.state = State.DONE
        self.done.set()

    def work(self) -> None:
        """Does it.

        Raises:
            RDMAError: It cannot be done, or was ended.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Has it end soon."""
        self.is_wanted = False

    def is_deserted(self) -> bool:
        """Whether the one who asked for it is gone."""
        return time.monotonic() - self.asked > _PATIENCE_S


class _Pulls(Work):
    """Copies to buffers of this process."""

    def __init__(self, limit: float | None, order: memoryview) -> None:
        super().__init__(limit)
        self._pulls = pulls_of(order)
        self._lock = threading.Lock()
        self._transfer: Completion[None] | None = None

    def work(self) -> None:
        transfer = begin_here(self._pulls, self.left())
        with self._lock:
            self._transfer = transfer
            is_wanted = self.is_wanted
        if not is_wanted:
            transfer.cancel()
        while not transfer.wait(5.0):
            if self.is_deserted():
                transfer.cancel()
        transfer.outcome()

    def end(self) -> None:
        with self._lock:
            self.is_wanted = False
            transfer = self._transfer
        if transfer is not None:
            transfer.cancel()


_lock = threading.Lock()
_works: dict[bytes, Work] = {}
_kinds: dict[bytes, Callable[[float | None, memoryview], Work]] = {b"p": _Pulls}
_questions: dict[bytes, Callable[[Work, memoryview], None]] = {}


def handle_kind(
    kind: bytes,
    make: Callable[[float | None, memoryview], Work],
    questions: dict[bytes, Callable[[Work, memoryview], None]],
) -> None:
    """Adds a kind of errand, and what else may be asked about it."""
    _kinds[kind] = make
    _questions.update(questions)


def answer_state(work: Work) -> bytes:
    """Says how far it is."""
    # Read in this order: what comes later says more.
    extra_before, state = work.extra, work.state
    extra = work.extra if state is not State.RUNNING else extra_before
    return _STATE.pack(state, work.progress) + extra


def _answer(question: bytes) -> bytes:
    what, number = HEAD.unpack_from(question)
    body = memoryview(question)[HEAD.size :]
    if what == Ask.BEGIN:
        return _begin(number, body)
    with _lock:
        work = _works.get(number)
    if work is None:
        return _STATE.pack(State.UNKNOWN, 0)
    work.asked = time.monotonic()
    if what == Ask.END:
        work.end()
        work.done.wait()
    elif what in _questions:
        _questions[what](work, body)
    if work.done.is_set() and (what == Ask.END or not work.is_kept):
        with _lock:
            _works.pop(number, None)
    return answer_state(work)


def _begin(number: bytes, body: memoryview) -> bytes:
    kind, limit = _BEGIN.unpack_from(body)
    make = _kinds.get(kind)
    if make is None:
        return _STATE.pack(State.FAILED, 0) + encode_error(RDMAError("an unknown kind of errand"))
    try:
        work = make(None if limit < 0 else limit, body[_BEGIN.size :])
    except Exception as error:
        return _STATE.pack(State.FAILED, 0) + encode_error(error)
    with _lock:
        for old in [key for key, one in _works.items() if one.done.is_set() and one.is_deserted()]:
            del _works[old]
        _works[number] = work
    run_in_thread(work.run)
    if work.done.wait(_AT_ONCE_S) and not work.is_kept:
        with _lock:
            _works.pop(number, None)
    return answer_state(work)


def _forget() -> None:
    global _lock
    _lock = threading.Lock()
    _works.clear()


os.register_at_fork(after_in_child=_forget)
register_handler(ERRAND, _answer)
