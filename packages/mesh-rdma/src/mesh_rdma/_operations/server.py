"""The server side of remote operations: runs them in threads and reports their state.

A process that holds a buffer sends its owner an operation that fills the buffer
(`remote_operation`). The owner responds immediately and runs the operation in a thread; the client
polls for its state. No connection is blocked for the duration, and each side detects the death of
the other at the next poll.
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
from mesh_rdma._operations.pull import begin_local_pulls, decode_pulls
from mesh_rdma._requests.error_encoding import encode_error
from mesh_rdma._requests.handlers import register_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core.spi import Completion

__all__ = ["HEAD", "OPERATION", "Command", "Operation", "State", "encode_state", "register_kind"]

#: The handler name of these requests on the wire.
OPERATION = "operation"
#: The head of a request: the command and the id of the operation.
HEAD = struct.Struct("<c16s")
_BEGIN = struct.Struct("<cd")
_STATE = struct.Struct("<BQ")
#: How long the first response waits for a short operation, which saves a second request.
_AT_ONCE_S = 0.002
#: An operation whose client has not polled for this long is abandoned.
_ABANDONED_AFTER_S = 60.0


class Command:
    """The command of a request."""

    BEGIN = b"b"
    STATE = b"s"
    END = b"e"


class State(IntEnum):
    """The state of an operation."""

    RUNNING = 0
    DONE = 1
    FAILED = 2
    #: The operation waits for another source.
    WAITING = 3
    #: The operation does not exist.
    UNKNOWN = 4


class Operation:
    """One operation: a thread runs it, and requests read its state.

    Attributes:
        extra: Bytes that belong to the state.
        is_kept: Whether it is kept until the client ends it, even after it is done.
    """

    def __init__(self, limit: float | None) -> None:
        self.until = None if limit is None else time.monotonic() + limit
        self.requested_at = time.monotonic()
        self.state = State.RUNNING
        self.progress = 0
        self.extra = b""
        self.done = threading.Event()
        self.is_cancelled = False
        self.is_kept = False

    def left(self) -> float | None:
        """Return the seconds until the deadline, or None if there is no limit."""
        return None if self.until is None else max(self.until - time.monotonic(), 0.0)

    def run(self) -> None:
        """Run the operation and record its outcome."""
        try:
            self.work()
        except Exception as error:
            self.extra = encode_error(error)
            self.state = State.FAILED
        else:
            self.state = State.DONE
        self.done.set()

    def work(self) -> None:
        """Perform the operation.

        Raises:
            RDMAError: The operation failed or was cancelled.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Cancel the operation, without waiting for its end."""
        self.is_cancelled = True

    def is_abandoned(self) -> bool:
        """Return whether the client has stopped polling."""
        return time.monotonic() - self.requested_at > _ABANDONED_AFTER_S


class _PullOperation(Operation):
    """Pulls into buffers of this process."""

    def __init__(self, limit: float | None, payload: memoryview) -> None:
        super().__init__(limit)
        self._pulls = decode_pulls(payload)
        self._lock = threading.Lock()
        self._transfer: Completion[None] | None = None

    def work(self) -> None:
        transfer = begin_local_pulls(self._pulls, self.left())
        with self._lock:
            self._transfer = transfer
            is_cancelled = self.is_cancelled
        if is_cancelled:
            transfer.cancel()
        while not transfer.wait(5.0):
            if self.is_abandoned():
                transfer.cancel()
        transfer.outcome()

    def end(self) -> None:
        with self._lock:
            self.is_cancelled = True
            transfer = self._transfer
        if transfer is not None:
            transfer.cancel()


_lock = threading.Lock()
_operations: dict[bytes, Operation] = {}
_kinds: dict[bytes, Callable[[float | None, memoryview], Operation]] = {b"p": _PullOperation}
_commands: dict[bytes, Callable[[Operation, memoryview], None]] = {}


def register_kind(
    kind: bytes,
    make: Callable[[float | None, memoryview], Operation],
    commands: dict[bytes, Callable[[Operation, memoryview], None]],
) -> None:
    """Register a kind of operation, with its additional commands."""
    _kinds[kind] = make
    _commands.update(commands)


def encode_state(operation: Operation) -> bytes:
    """Encode the state of an operation."""
    # The order of these reads matters: the second value of `extra` is the more recent one.
    extra_before, state = operation.extra, operation.state
    extra = operation.extra if state is not State.RUNNING else extra_before
    return _STATE.pack(state, operation.progress) + extra


def _handle(request: bytes) -> bytes:
    command, number = HEAD.unpack_from(request)
    body = memoryview(request)[HEAD.size :]
    if command == Command.BEGIN:
        return _begin(number, body)
    with _lock:
        operation = _operations.get(number)
    if operation is None:
        return _STATE.pack(State.UNKNOWN, 0)
    operation.requested_at = time.monotonic()
    if command == Command.END:
        operation.end()
        operation.done.wait()
    elif command in _commands:
        _commands[command](operation, body)
    if operation.done.is_set() and (command == Command.END or not operation.is_kept):
        with _lock:
            _operations.pop(number, None)
    return encode_state(operation)


def _begin(number: bytes, body: memoryview) -> bytes:
    kind, limit = _BEGIN.unpack_from(body)
    make = _kinds.get(kind)
    if make is None:
        unknown = RDMAError("an unknown kind of operation")
        return _STATE.pack(State.FAILED, 0) + encode_error(unknown)
    try:
        operation = make(None if limit < 0 else limit, body[_BEGIN.size :])
    except Exception as error:
        return _STATE.pack(State.FAILED, 0) + encode_error(error)
    with _lock:
        abandoned = [
            key for key, one in _operations.items() if one.done.is_set() and one.is_abandoned()
        ]
        for old in abandoned:
            del _operations[old]
        _operations[number] = operation
    run_in_thread(operation.run)
    if operation.done.wait(_AT_ONCE_S) and not operation.is_kept:
        with _lock:
            _operations.pop(number, None)
    return encode_state(operation)


def _reset_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _operations.clear()


os.register_at_fork(after_in_child=_reset_after_fork)
register_handler(OPERATION, _handle)
