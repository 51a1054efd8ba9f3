"""Synchronizes tensors that streams of one process lend to each other.

A tensor is given when its own stream reaches the borrow, and taken when the other stream first
needs it. It is returned when that stream is done with it. Its own stream waits for that as late as
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

__all__ = ["BorrowExchange", "free_step", "give_step", "give_up_step", "return_step", "take_step"]
__all__ += ["wait_step"]


class StreamEnded(Exception):
    """The streams of the process have ended while one was waiting for another."""


class _Loan:
    """A tensor that is lent, until it is returned and its own stream has been notified."""

    def __init__(self, value: Any, is_mutable: bool) -> None:
        self.value = value
        self.is_mutable = is_mutable
        self.is_back = False
        #: The failure by which the value was lost while the other stream had it.
        self.failed_value: FailedValue | None = None
        self.event = _event(value)

    @property
    def storage(self) -> int | None:
        """The storage of the value."""
        value = self.value
        return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


class BorrowExchange:
    """The loans between the streams of one process."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._loans: dict[int, _Loan] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._loans)

    def close(self) -> None:
        """End all waits."""
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()

    def give(self, token: int, value: Any, is_mutable: bool) -> None:
        """Make a value available to another stream."""
        # A change of the shape on one side must not be visible on the other.
        own = value.detach() if isinstance(value, torch.Tensor) else value
        with self._turn:
            self._loans[token] = _Loan(own, is_mutable)
            self._turn.notify_all()

    def take(self, token: int) -> Any:
        """Return a value; wait until it is available.

        Raises:
            StreamEnded: It will never be available.
        """
        with self._turn:
            self._wait_for(lambda: token in self._loans)
            loan = self._loans[token]
        if loan.event is not None:
            stream = torch.cuda.current_stream(loan.value.device)
            stream.wait_event(loan.event)
            # The allocator must not reuse the memory until this stream is done with it.
            loan.value.record_stream(stream)
        return loan.value

    def give_back(self, token: int) -> None:
        """Give a value back; the stream that took it is done with it."""
        with self._turn:
            loan = self._loans[token]
            loan.event = _event(loan.value)
            loan.is_back = True
            if not loan.is_mutable and loan.event is None:
                # Nobody needs to wait for a read-only loan without an event.
                del self._loans[token]
            self._turn.notify_all()

    def wait(self, token: int) -> tuple[Any, FailedValue | None]:
        """Wait until a value is returned; return it, and the failure by which it was lost, if any.

        Raises:
            StreamEnded: It will never be returned.
        """
        with self._turn:
            self._wait_for(lambda: token not in self._loans or self._loans[token].is_back)
            loan = self._loans.pop(token, None)
        if loan is None:
            return None, None
        if loan.event is not None:
            torch.cuda.current_stream(loan.value.device).wait_event(loan.event)
        return loan.value, loan.failed_value

    def forget(self, token: int) -> None:
        """End a loan that was never taken."""
        with self._turn:
            self._loans.pop(token, None)

    def propagate_failure(self, storages: Collection[int], failed_value: FailedValue) -> None:
        """Record that the values in some storages are lost."""
        with self._turn:
            for loan in self._loans.values():
                if loan.is_mutable and not loan.is_back and loan.storage in storages:
                    loan.failed_value = failed_value

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


def give_step(compiled_op: CompiledOp, world: World) -> Step:
    """Give a value to another stream; the third integer is its slot there."""
    values, exchange, is_mutable = world.values, world.exchange, compiled_op.detail

    def step(code: list[int], at: int) -> int:
        exchange.give(code[at + 1], values[code[at]], is_mutable)
        return at + 3

    return step


def take_step(compiled_op: CompiledOp, world: World) -> Step:
    """Take a value that another stream gives."""
    values, exchange = world.values, world.exchange

    def step(code: list[int], at: int) -> int:
        values[code[at + 2]] = exchange.take(code[at + 1])
        return at + 3

    return step


def return_step(compiled_op: CompiledOp, world: World) -> Step:
    """Return a value that was taken."""
    exchange = world.exchange

    def step(code: list[int], at: int) -> int:
        exchange.give_back(code[at])
        return at + 1

    return step


def wait_step(compiled_op: CompiledOp, world: World) -> Step:
    """Wait until a value that was given is returned."""
    exchange = world.exchange

    def step(code: list[int], at: int) -> int:
        value, failed_value = exchange.wait(code[at])
        if failed_value is not None:
            world.propagate_failure({value.untyped_storage()._cdata}, failed_value)
        return at + 1

    return step


def give_up_step(compiled_op: CompiledOp, world: World) -> Step:
    """End a loan that was never taken."""
    exchange = world.exchange

    def step(code: list[int], at: int) -> int:
        exchange.forget(code[at])
        return at + 1

    return step


def free_step(compiled_op: CompiledOp, world: World) -> Step:
    """Free a value, in the order of its stream."""
    values = world.values

    def step(code: list[int], at: int) -> int:
        values[code[at]] = None
        return at + 1

    return step
