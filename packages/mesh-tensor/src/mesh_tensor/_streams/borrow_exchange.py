"""Tensors that streams of one process lend to each other.

A tensor is given where the order of its own stream has come to the borrow, and taken where the
other stream first needs it. It is back when that stream is done with it; its own waits for that no
sooner than it must.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from mesh_tensor._worker.failure import FailedValue

if TYPE_CHECKING:
    from collections.abc import Collection

    from mesh_tensor._engine.plan import Plan
    from mesh_tensor._worker.step_compiler import Step
    from mesh_tensor._worker.world import World

__all__ = ["Exchange", "free_step", "give_step", "give_up_step", "return_step", "take_step"]
__all__ += ["wait_step"]


class StreamEnded(Exception):
    """The streams of the process have ended while one waited for another one."""


class _Loan:
    """A tensor that is given, until it is back and its own stream knows."""

    def __init__(self, value: Any, is_mutable: bool) -> None:
        self.value = value
        self.is_mutable = is_mutable
        self.is_back = False
        #: What the value was lost by, while the other stream had it.
        self.failed_value: FailedValue | None = None
        self.event = _event(value)

    @property
    def storage(self) -> int | None:
        """Which memory it is in."""
        value = self.value
        return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


class Exchange:
    """What is lent between the streams of one process."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._loans: dict[int, _Loan] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._loans)

    def close(self) -> None:
        """Ends all waiting."""
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()

    def give(self, token: int, value: Any, is_mutable: bool) -> None:
        """Says that a value can be had from now on."""
        # What is done to its shape on one side is not for the other one to see.
        own = value.detach() if isinstance(value, torch.Tensor) else value
        with self._turn:
            self._loans[token] = _Loan(own, is_mutable)
            self._turn.notify_all()

    def take(self, token: int) -> Any:
        """Gives a value; waits until it can be had.

        Raises:
            StreamEnded: It never will.
        """
        with self._turn:
            self._wait_for(lambda: token in self._loans)
            loan = self._loans[token]
        if loan.event is not None:
            stream = torch.cuda.current_stream(loan.value.device)
            stream.wait_event(loan.event)
            # Its memory is not for others until this stream is done with it.
            loan.value.record_stream(stream)
        return loan.value

    def give_back(self, token: int) -> None:
        """Says that the stream which took a value is done with it."""
        with self._turn:
            loan = self._loans[token]
            loan.event = _event(loan.value)
            loan.is_back = True
            if not loan.is_mutable and loan.event is None:
                # Nothing is left to be known of it.
                del self._loans[token]
            self._turn.notify_all()

    def wait(self, token: int) -> tuple[Any, FailedValue | None]:
        """Waits until a value is back; gives it, and what it was lost by.

        Raises:
            StreamEnded: It never will be.
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
        """Ends a loan of what was never taken."""
        with self._turn:
            self._loans.pop(token, None)

    def propagate_failure(self, storages: Collection[int], failed_value: FailedValue) -> None:
        """Notes that what is in some memory was lost."""
        with self._turn:
            for loan in self._loans.values():
                if loan.is_mutable and not loan.is_back and loan.storage in storages:
                    loan.failed_value = failed_value

    def _wait_for(self, condition: Any) -> None:
        self._turn.wait_for(lambda: self._is_closed or condition())
        if self._is_closed:
            raise StreamEnded("the streams of the process have ended")


def _event(value: Any) -> torch.cuda.Event | None:
    """Marks how far the device is, where the value is on one that runs behind."""
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(value.device))
    return event


def give_step(plan: Plan, world: World) -> Step:
    """Gives a value to another stream; its third word is the slot there."""
    values, exchange, is_mutable = world.values, world.exchange, plan.detail

    def step(w: list[int], at: int) -> int:
        exchange.give(w[at + 1], values[w[at]], is_mutable)
        return at + 3

    return step


def take_step(plan: Plan, world: World) -> Step:
    """Takes what another stream gives."""
    values, exchange = world.values, world.exchange

    def step(w: list[int], at: int) -> int:
        values[w[at + 2]] = exchange.take(w[at + 1])
        return at + 3

    return step


def return_step(plan: Plan, world: World) -> Step:
    """Gives back what was taken."""
    exchange = world.exchange

    def step(w: list[int], at: int) -> int:
        exchange.give_back(w[at])
        return at + 1

    return step


def wait_step(plan: Plan, world: World) -> Step:
    """Waits until what was given is back."""
    exchange = world.exchange

    def step(w: list[int], at: int) -> int:
        value, failed_value = exchange.wait(w[at])
        if failed_value is not None:
            world.propagate_failure({value.untyped_storage()._cdata}, failed_value)
        return at + 1

    return step


def give_up_step(plan: Plan, world: World) -> Step:
    """Ends a loan that was never taken."""
    exchange = world.exchange

    def step(w: list[int], at: int) -> int:
        exchange.forget(w[at])
        return at + 1

    return step


def free_step(plan: Plan, world: World) -> Step:
    """Lets go of a value, in the order of its stream."""
    values = world.values

    def step(w: list[int], at: int) -> int:
        values[w[at]] = None
        return at + 1

    return step
