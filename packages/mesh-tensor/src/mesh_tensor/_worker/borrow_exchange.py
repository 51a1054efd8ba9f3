"""Synchronizes tensors that streams of one process borrow from each other.

A tensor is shared when its own stream reaches the borrow, and acquired when the other stream first
needs it. It is released when that stream is done with it. Its own stream waits for that as late as
possible.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from mesh_tensor._worker.failure import FailedValue

if TYPE_CHECKING:
    from collections.abc import Collection

    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._worker.step_compiler import Step
    from mesh_tensor._worker.world import World

__all__ = [
    "BorrowExchange",
    "acquire_step",
    "cancel_step",
    "free_step",
    "release_step",
    "share_step",
    "wait_step",
]


class StreamEnded(Exception):
    """The streams of the process have ended while one was waiting for another."""


class _Borrow:
    """A borrowed tensor, until it is released and its own stream has been notified."""

    def __init__(self, value: Any, is_mutable: bool) -> None:
        self.value = value
        self.is_mutable = is_mutable
        self.is_released = False
        #: The failure by which the value was lost while the other stream had it.
        self.failed_value: FailedValue | None = None
        self.event = _event(value)

    @property
    def storage(self) -> int | None:
        """The storage of the value."""
        value = self.value
        return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


class BorrowExchange:
    """The borrows between the streams of one process."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._borrows: dict[int, _Borrow] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._borrows)

    def close(self) -> None:
        """End all waits."""
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()

    def share(self, token: int, value: Any, is_mutable: bool) -> None:
        """Make a value available to another stream."""
        # A change of the shape on one side must not be visible on the other.
        own = value.detach() if isinstance(value, torch.Tensor) else value
        with self._turn:
            self._borrows[token] = _Borrow(own, is_mutable)
            self._turn.notify_all()

    def acquire(self, token: int) -> Any:
        """Return a value; wait until it is available.

        Raises:
            StreamEnded: It will never be available.
        """
        with self._turn:
            self._wait_for(lambda: token in self._borrows)
            borrow = self._borrows[token]
        if borrow.event is not None:
            stream = torch.cuda.current_stream(borrow.value.device)
            stream.wait_event(borrow.event)
            # The allocator must not reuse the memory until this stream is done with it.
            borrow.value.record_stream(stream)
        return borrow.value

    def release(self, token: int) -> None:
        """Release a value; the stream that acquired it is done with it."""
        with self._turn:
            borrow = self._borrows[token]
            borrow.event = _event(borrow.value)
            borrow.is_released = True
            if not borrow.is_mutable and borrow.event is None:
                # No stream needs to wait for a read-only borrow without an event.
                del self._borrows[token]
            self._turn.notify_all()

    def wait(self, token: int) -> tuple[Any, FailedValue | None]:
        """Wait until a value is released; return it, and the failure by which it was lost, if any.

        Raises:
            StreamEnded: It will never be released.
        """
        with self._turn:
            self._wait_for(lambda: token not in self._borrows or self._borrows[token].is_released)
            borrow = self._borrows.pop(token, None)
        if borrow is None:
            return None, None
        if borrow.event is not None:
            torch.cuda.current_stream(borrow.value.device).wait_event(borrow.event)
        return borrow.value, borrow.failed_value

    def cancel(self, token: int) -> None:
        """Cancel a borrow that was never acquired."""
        with self._turn:
            self._borrows.pop(token, None)

    def propagate_failure(self, storages: Collection[int], failed_value: FailedValue) -> None:
        """Record that the values in some storages are lost."""
        with self._turn:
            for borrow in self._borrows.values():
                if borrow.is_mutable and not borrow.is_released and borrow.storage in storages:
                    borrow.failed_value = failed_value

    def _wait_for(self, condition: Any) -> None:
        self._turn.wait_for(lambda: self._is_closed or condition())
        if self._is_closed:
            raise StreamEnded("the streams of the process have ended")


def _event(value: Any) -> torch.cuda.Event | None:
    """Record an event if the value is on a device that executes asynchronously."""
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(value.device))
    return event


def share_step(compiled_op: CompiledOp, world: World) -> Step:
    """Share a value with another stream; the third integer is its slot there."""
    values, exchange, is_mutable = world.values, world.exchange, compiled_op.detail

    def step(code: list[int], at: int) -> int:
        exchange.share(code[at + 1], values[code[at]], is_mutable)
        return at + 3

    return step


def acquire_step(compiled_op: CompiledOp, world: World) -> Step:
    """Acquire a value that another stream shares."""
    values, exchange = world.values, world.exchange

    def step(code: list[int], at: int) -> int:
        values[code[at + 2]] = exchange.acquire(code[at + 1])
        return at + 3

    return step


def release_step(compiled_op: CompiledOp, world: World) -> Step:
    """Release a value that was acquired."""
    exchange = world.exchange

    def step(code: list[int], at: int) -> int:
        exchange.release(code[at])
        return at + 1

    return step


def wait_step(compiled_op: CompiledOp, world: World) -> Step:
    """Wait until a value that was shared is released."""
    exchange = world.exchange

    def step(code: list[int], at: int) -> int:
        value, failed_value = exchange.wait(code[at])
        if failed_value is not None:
            world.propagate_failure({value.untyped_storage()._cdata}, failed_value)
        return at + 1

    return step


def cancel_step(compiled_op: CompiledOp, world: World) -> Step:
    """Cancel a borrow that was never acquired."""
    exchange = world.exchange

    def step(code: list[int], at: int) -> int:
        exchange.cancel(code[at])
        return at + 1

    return step


def free_step(compiled_op: CompiledOp, world: World) -> Step:
    """Free a value, in the order of its stream."""
    values = world.values

    def step(code: list[int], at: int) -> int:
        values[code[at]] = None
        return at + 1

    return step
