"""Calls of actors with the tensors of their processes, in program order."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import torch

from mesh_core.spi import CompletionFuture
from mesh_tensor._errors import NoGradient, TensorError
from mesh_tensor._instructions.completion import CheckedCompletion
from mesh_tensor._mesh.activation import active_stream
from mesh_tensor._remote.actor_call_protocol import ActorCallRequest, ActorCallToken
from mesh_tensor._remote.arguments import Arguments
from mesh_tensor._remote.call_protocol import DROPPED
from mesh_tensor._remote.result_inference import infer_results
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from mesh_core.spi import TensorEngineCall
    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._remote.call_protocol import ResultSpec

__all__ = ["call_actors"]

_KNOWN_MAX = 4096


def call_actors(
    engine: Engine,
    canceller_type: type[Any],
    call: TensorEngineCall,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call every actor with the tensors of its process.

    Args:
        engine: The engine of the tensors.
        canceller_type: The actor that cancels calls which are not served.
        call: The call.
        args: The positional arguments.
        kwargs: The keyword arguments.

    Raises:
        WrongMesh: A tensor is not on the processes of the actors.
        NoGradient: Results are kept, and a tensor requires gradients while gradients are enabled.
        TensorError: Results are kept, but the endpoint does not define their shapes.
    """
    name, is_kept = call.name, call.verb == "rref"
    arguments = Arguments(name, args, kwargs, _mesh(engine, call), call.verb == "choose")
    if arguments.groups:
        engine.create_groups(arguments.groups)
    result_spec = _result_spec(engine, call, arguments) if is_kept else DROPPED
    token = secrets.token_hex(8)
    request = ActorCallRequest(token, call.port, arguments.blob())
    canceller = engine.remote.canceller(call.procs, canceller_type)
    stream = engine.stream
    with stream.lock:
        result = engine.remote.issue_actor_call(name, arguments, request, result_spec, name)
        stream.flush()
        try:
            answer = call.send(ActorCallToken(token, is_kept))
        except BaseException:
            canceller.cancel_call.broadcast(token)
            raise
    if call.verb not in ("call", "call_one", "choose", "rref"):
        return answer

    def cancel() -> object:
        # Some actors may not have served the call. Actors that have served it ignore the
        # cancellation.
        return canceller.cancel_call.broadcast(token)

    # A restarted actor does not serve the calls of its predecessor.
    answer.add_done_callback(lambda done: done.exception() and cancel())
    if is_kept:
        return result
    refs = [one._ref for one in arguments.operands]
    return CompletionFuture(CheckedCompletion(engine, refs, answer, cancel))


def _mesh(engine: Engine, call: TensorEngineCall) -> DeviceMesh:
    return engine.mesh(call.region)._on(active_stream.get())


def _result_spec(engine: Engine, call: TensorEngineCall, arguments: Arguments) -> ResultSpec:
    if torch.is_grad_enabled():
        for one in arguments.operands:
            if type(one) is Tensor and one.requires_grad:
                raise NoGradient(
                    f"{call.name} got a tensor that needs gradients, but actors do not propagate"
                    " gradients: detach it, or call it under torch.no_grad()"
                )
    if call.propagate == "inspect":
        return DROPPED
    if not callable(call.propagate):
        raise TensorError(
            f"the shapes of the results of {call.name} are unknown: declare them with"
            " @endpoint(propagate=...) or as_endpoint(..., propagate=...)"
        )
    known = engine.remote.actor_result_specs
    key = None if arguments.key is None else (call.propagate, arguments.key)
    result_spec = known.get(key)
    if result_spec is None:
        result_spec = infer_results(call.name, call.propagate, arguments)
        if key is not None:
            if len(known) >= _KNOWN_MAX:
                known.clear()
            known[key] = result_spec
    return result_spec
