"""Tensors that a process lends to its actors, while the words behind wait.

The words say when a call of an actor has its turn; the call itself comes to the actor as any other
message does. Both meet here: the actor waits until the words have come so far, and the words
go on when the actor's method has ended. So what the program does before and after the call comes
before and after it in each process, without a copy of the tensors.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_core import Actor, endpoint
from mesh_core.spi import is_actor_coming, local_actor
from mesh_tensor._remote.steps import (
    LostOperand,
    check_writes,
    keep_results,
    put_in,
    versions_of,
)
from mesh_tensor._worker.failure import FailedValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor._engine.plan import Plan
    from mesh_tensor._worker.step_compiler import Step
    from mesh_tensor._worker.world import World

__all__ = ["Handover", "LoanOrder", "Loans", "lend_step", "serve"]

#: How often a process checks that an actor that has not begun can still do so.
_LOOK_S = 0.2


@dataclass(frozen=True)
class Handover:
    """What an actor is sent in place of its arguments.

    Attributes:
        token: Which loan they are.
        is_kept: Whether what the method returns stays in its process.
    """

    token: str
    is_kept: bool


@dataclass(frozen=True)
class LoanOrder:
    """What the words bring beside the tensors.

    Attributes:
        token: What the loan is called.
        port: Whom it is for.
        blob: The arguments, with stand-ins for what travels by slot.
    """

    token: str
    port: int
    blob: bytes


class _Loan:
    """One call of one actor."""

    def __init__(self) -> None:
        self.offered = threading.Event()
        self.ended = threading.Event()
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        #: The tensors that the actor gets, by operand.
        self.tensors: list[torch.Tensor | None] = []
        self.error: BaseException | None = None
        self.result: Any = None
        self.is_begun = False

    def begin(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Gives the arguments.

        Raises:
            Exception: There are none, as something that they depend on has failed.
        """
        if self.error is not None:
            raise self.error
        return self.arguments

    def end(self, result: Any, error: BaseException | None) -> None:
        """Lets the words go on."""
        self.result, self.error = result, error
        self.ended.set()

    def outgoing(self, result: Any) -> Any:
        """Gives a result as it is sent: apart from what was lent."""
        lent = {one.untyped_storage()._cdata for one in self.tensors if one is not None}

        def apart(one: torch.Tensor) -> torch.Tensor:
            one = one.detach()
            return one.clone() if one.untyped_storage()._cdata in lent else one

        return pytree.tree_map_only(torch.Tensor, apart, result)


class _Counter:
    """The loans of this process that have not been settled from both sides."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loans: dict[str, _Loan] = {}
        #: Those that nobody waits for any more, in case that their calls come all the same.
        self._given_up: deque[str] = deque(maxlen=1024)

    def of(self, token: str) -> _Loan:
        with self._lock:
            return self._loans.setdefault(token, _Loan())

    def take(self, token: str) -> _Loan:
        """Gives a loan to the actor that it is for, once."""
        with self._lock:
            if token in self._given_up:
                loan = _Loan()
                loan.error = RuntimeError("the call was given up")
                loan.offered.set()
                return loan
            loan = self._loans.setdefault(token, _Loan())
            loan.is_begun = True
            return loan

    def give_up(self, token: str) -> None:
        """Ends a loan that nobody will take; one that was taken ends by itself."""
        with self._lock:
            loan = self._loans.setdefault(token, _Loan())
            if loan.is_begun:
                return
            loan.is_begun = True
            self._given_up.append(token)
        loan.end(None, RuntimeError("the actor has not served the call"))

    def forget(self, token: str) -> None:
        with self._lock:
            self._loans.pop(token, None)


_counter = _Counter()


class Loans(Actor):
    """Hears, beside the words, of calls that actors will not serve."""

    @endpoint
    def give_up(self, token: str) -> None:
        """Lets the words go on that wait for a call."""
        _counter.give_up(token)


def lend_step(plan: Plan, world: World) -> Step:
    """Lends tensors for one call, and keeps what its method returns."""
    values, operands, words = world.values, plan.operands, plan.words - 1
    call = plan.detail

    def step(w: list[int], at: int) -> int:
        given = [values[slot] for slot in w[at : at + operands]]
        order: LoanOrder = world.given[w[at + operands]]
        loan = _counter.of(order.token)
        lost = next((one for one in given if isinstance(one, FailedValue)), None)
        if lost is not None:
            loan.error = lost.failure.raised()
        else:
            try:
                loan.tensors = [_lent(one) for one in given]
                loan.arguments = put_in(world, order.blob, given, loan.tensors)
            except Exception as error:
                loan.error = error
        versions = versions_of(given)
        loan.offered.set()
        _wait(loan, order)
        _counter.forget(order.token)
        if lost is not None:
            raise LostOperand
        if not call.is_checked:
            return at + words
        if loan.error is not None:
            raise loan.error
        check_writes(plan, given, versions)
        kept = keep_results(plan.name, call, loan.result, loan.tensors)
        for index, value in enumerate(kept):
            values[w[at + operands + 1 + index]] = value
        return at + words

    return step


def _lent(value: Any) -> torch.Tensor | None:
    return value.detach() if isinstance(value, torch.Tensor) else None


def _wait(loan: _Loan, order: LoanOrder) -> None:
    """Waits until the actor has ended the loan, or can no longer begin it."""
    actor = local_actor(order.port)
    while not loan.ended.wait(_LOOK_S):
        if loan.is_begun:
            continue
        if actor is None and is_actor_coming(order.port):
            continue
        # The spawn may have ended since.
        now = local_actor(order.port)
        actor = actor or now
        if now is None or now is not actor:
            _counter.give_up(order.token)


def serve(function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
    """Gives what an actor calls in place of a method that gets distributed tensors."""

    def run(instance: Any, *given: Any) -> Any:
        *before, handover = given
        loan = _counter.take(handover.token)
        result, answer, error = None, None, None
        try:
            loan.offered.wait()
            args, kwargs = loan.begin()
            result = function(instance, *before, *args, **kwargs)
            # Before the words go on, which may write to what was lent.
            answer = None if handover.is_kept else loan.outgoing(result)
        except BaseException as raised:
            error = raised
            raise
        finally:
            loan.end(result, error)
        return answer

    async def run_async(instance: Any, *given: Any) -> Any:
        *before, handover = given
        loan = _counter.take(handover.token)
        result, answer, error = None, None, None
        try:
            if not loan.offered.is_set():
                # Other actors share the loop, and the words may wait for one of them.
                await asyncio.to_thread(loan.offered.wait)
            args, kwargs = loan.begin()
            result = await function(instance, *before, *args, **kwargs)
            # Before the words go on, which may write to what was lent.
            answer = None if handover.is_kept else loan.outgoing(result)
        except BaseException as raised:
            error = raised
            raise
        finally:
            loan.end(result, error)
        return answer

    return run_async if is_async else run
