"""Tensors as arguments of actor methods; operations issued after the call wait for it.

The instruction stream determines when a call of an actor may run, while the call itself arrives at
the actor like any message. Both are synchronized here: the actor waits until the stream has reached
the call, and the stream continues when the method has ended. In each process, the operations that
the program issues before and after the call therefore run before and after it, without a copy of
the tensors.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_core import Actor, endpoint
from mesh_core.spi import current_process
from mesh_tensor._worker.failure import FailedValue, LostOperand
from mesh_tensor._worker.remote_functions import (
    check_writes,
    keep_results,
    put_in,
    versions_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._remote.actor_call_protocol import ActorCallRequest
    from mesh_tensor._worker.step_compiler import Step
    from mesh_tensor._worker.world import World

__all__ = ["ActorCallCanceller", "actor_call_step", "serve"]

#: The interval at which a process checks whether an actor that has not begun the call still exists.
_LOOK_S = 0.2


class _ActorCall:
    """One call of one actor."""

    def __init__(self) -> None:
        self.offered = threading.Event()
        self.ended = threading.Event()
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        #: The tensors that the actor receives, by operand.
        self.tensors: list[torch.Tensor | None] = []
        self.error: BaseException | None = None
        self.result: Any = None
        self.is_begun = False

    def begin(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments.

        Raises:
            Exception: A value that the arguments depend on has failed.
        """
        if self.error is not None:
            raise self.error
        return self.arguments

    def end(self, result: Any, error: BaseException | None) -> None:
        """Complete the call, so that the instruction stream continues."""
        self.result, self.error = result, error
        self.ended.set()

    def outgoing(self, result: Any) -> Any:
        """Return a result for sending: tensors that share memory with the arguments are copied."""
        argument_storages = {
            one.untyped_storage()._cdata for one in self.tensors if one is not None
        }

        def apart(one: torch.Tensor) -> torch.Tensor:
            one = one.detach()
            return one.clone() if one.untyped_storage()._cdata in argument_storages else one

        return pytree.tree_map_only(torch.Tensor, apart, result)


class _ActorCalls:
    """The calls of this process that have not been completed by both sides."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, _ActorCall] = {}
        #: Cancelled calls whose messages may still arrive.
        self._cancelled: deque[str] = deque(maxlen=1024)

    def of(self, token: str) -> _ActorCall:
        with self._lock:
            return self._calls.setdefault(token, _ActorCall())

    def begin_serving(self, token: str) -> _ActorCall:
        """Return a call to the actor that serves it, once."""
        with self._lock:
            if token in self._cancelled:
                actor_call = _ActorCall()
                actor_call.error = RuntimeError("the call was cancelled")
                actor_call.offered.set()
                return actor_call
            actor_call = self._calls.setdefault(token, _ActorCall())
            actor_call.is_begun = True
            return actor_call

    def cancel(self, token: str) -> None:
        """Cancel a call that no actor has begun to serve."""
        with self._lock:
            actor_call = self._calls.setdefault(token, _ActorCall())
            if actor_call.is_begun:
                return
            actor_call.is_begun = True
            self._cancelled.append(token)
        actor_call.end(None, RuntimeError("the actor did not serve the call"))

    def forget(self, token: str) -> None:
        with self._lock:
            self._calls.pop(token, None)


_actor_calls = _ActorCalls()


class ActorCallCanceller(Actor):
    """Cancels calls that actors will not serve; called outside the order of operations."""

    @endpoint
    def cancel_call(self, token: str) -> None:
        """Cancel a call, so that the operations issued after it continue."""
        _actor_calls.cancel(token)


def actor_call_step(compiled_op: CompiledOp, world: World) -> Step:
    """Pass tensors to one call of an actor, and store the results of its method."""
    values, operands, rest_len = world.values, compiled_op.operands, compiled_op.instruction_len - 1
    call = compiled_op.detail

    def step(code: list[int], at: int) -> int:
        given = [values[slot] for slot in code[at : at + operands]]
        request: ActorCallRequest = world.given[code[at + operands]]
        actor_call = _actor_calls.of(request.token)
        lost = next((one for one in given if isinstance(one, FailedValue)), None)
        if lost is not None:
            actor_call.error = lost.failure.raised()
        else:
            try:
                actor_call.tensors = [_detached(one) for one in given]
                actor_call.arguments = put_in(world, request.blob, given, actor_call.tensors)
            except Exception as error:
                actor_call.error = error
        versions = versions_of(given)
        actor_call.offered.set()
        _wait(actor_call, request)
        _actor_calls.forget(request.token)
        if lost is not None:
            raise LostOperand
        if not call.is_checked:
            return at + rest_len
        if actor_call.error is not None:
            raise actor_call.error
        check_writes(compiled_op, given, versions)
        kept = keep_results(compiled_op.name, call, actor_call.result, actor_call.tensors)
        for index, value in enumerate(kept):
            values[code[at + operands + 1 + index]] = value
        return at + rest_len

    return step


def _detached(value: Any) -> torch.Tensor | None:
    return value.detach() if isinstance(value, torch.Tensor) else None


def _wait(actor_call: _ActorCall, request: ActorCallRequest) -> None:
    """Wait until the actor has completed the call, or can no longer begin it."""
    actor = current_process.local_actor(request.port)
    while not actor_call.ended.wait(_LOOK_S):
        if actor_call.is_begun:
            continue
        if actor is None and current_process.is_actor_spawning(request.port):
            continue
        # The actor may have been spawned since the first lookup.
        now = current_process.local_actor(request.port)
        actor = actor or now
        if now is None or now is not actor:
            _actor_calls.cancel(request.token)


def serve(function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
    """Return the wrapper that an actor calls instead of a method that takes distributed tensors."""

    def run(instance: Any, *given: Any) -> Any:
        *before, call_token = given
        actor_call = _actor_calls.begin_serving(call_token.token)
        result, answer, error = None, None, None
        try:
            actor_call.offered.wait()
            args, kwargs = actor_call.begin()
            result = function(instance, *before, *args, **kwargs)
            # Copy results before the stream continues, because later operations may write to the
            # arguments.
            answer = None if call_token.is_kept else actor_call.outgoing(result)
        except BaseException as raised:
            error = raised
            raise
        finally:
            actor_call.end(result, error)
        return answer

    async def run_async(instance: Any, *given: Any) -> Any:
        *before, call_token = given
        actor_call = _actor_calls.begin_serving(call_token.token)
        result, answer, error = None, None, None
        try:
            if not actor_call.offered.is_set():
                # Other actors share the event loop, and the stream may be waiting for one of them.
                await asyncio.to_thread(actor_call.offered.wait)
            args, kwargs = actor_call.begin()
            result = await function(instance, *before, *args, **kwargs)
            # Copy results before the stream continues, because later operations may write to the
            # arguments.
            answer = None if call_token.is_kept else actor_call.outgoing(result)
        except BaseException as raised:
            error = raised
            raise
        finally:
            actor_call.end(result, error)
        return answer

    return run_async if is_async else run
