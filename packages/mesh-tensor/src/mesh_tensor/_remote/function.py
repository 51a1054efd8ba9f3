"""Functions of the program that run on the processes, on the local tensors."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import torch

from mesh_core.spi import CompletionFuture
from mesh_tensor._errors import NoGradient
from mesh_tensor._instructions.completion import CheckedCompletion
from mesh_tensor._remote.arguments import Arguments
from mesh_tensor._remote.call_protocol import DROPPED, FunctionCode, ResultSpec
from mesh_tensor._remote.function_table import code_of
from mesh_tensor._remote.opaque_ref import OpaqueRef
from mesh_tensor._remote.result_inference import infer_results
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from mesh_core import Future, ValueMesh
    from mesh_tensor._mesh.device_mesh import DeviceMesh

    Rule = Callable[..., Any] | str | None

__all__ = ["RemoteFunction", "call_on_shard_and_fetch", "remote"]

P = ParamSpec("P")
R = TypeVar("R")

#: The maximum number of cached result specs. When it is reached, the cache is cleared.
_KNOWN_MAX = 4096
_RULES = ("cached", "inspect")


class RemoteFunction(Generic[P, R]):
    """A function that is called in every process of a mesh; created by `remote`.

    It runs on the mesh of the tensors among its arguments, or on the active mesh if there are none.
    The arguments are converted for the process: a distributed tensor becomes the local tensor,
    without autograd history; a mesh becomes a `torch.distributed.device_mesh.DeviceMesh`; a
    `RemoteProcessGroup` becomes a `ProcessGroup`; and an `OpaqueRef` has its value there.
    """

    def __init__(self, target: Callable[P, R] | str, propagate: Rule) -> None:
        if isinstance(propagate, str) and propagate not in _RULES:
            raise ValueError(
                f"unknown propagation {propagate!r}: use 'cached', 'inspect' or a function"
            )
        self.__remote_target__ = target
        self._rule = propagate or "cached"
        self._name = target if isinstance(target, str) else getattr(target, "__qualname__", "?")
        self._code: FunctionCode | None = None
        self._invalidates_objects = False
        self._result_specs: dict[Hashable, tuple[ResultSpec, bytes]] = {}
        if not isinstance(target, str):
            functools.update_wrapper(self, target)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function on all processes; return distributed tensors for its results.

        `propagate` determines how the shapes of the results are obtained. The program does not wait
        for the call, except for the first call of each kind if `propagate` is `"cached"`.

        Raises:
            WrongMesh: The arguments are on different meshes.
            NoGradient: An argument requires gradients while gradients are enabled.
            OpFailed: A first call has failed.
            RanksDisagree: In a first call, the processes returned different results.
        """
        return self._issue(args, kwargs)

    def rref(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function on all processes, like `__call__`."""
        return self._issue(args, kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call the function on all processes; the future returns its results by rank.

        The tensors among the results are local tensors.
        """
        return self._call("call", args, kwargs)  # type: ignore[no-any-return]

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the function on the only process of the mesh.

        Raises:
            ValueError: The mesh does not have exactly one process.
        """
        return self._call("call_one", args, kwargs)  # type: ignore[no-any-return]

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the function on one process that is chosen at random."""
        return self._call("choose", args, kwargs)  # type: ignore[no-any-return]

    def call_on(self, shard: dict[str, int] | None, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the function on one process: the first, or the one at the given coordinates."""
        arguments = self._arguments(args, kwargs)
        mesh = arguments.mesh
        place = shard or dict.fromkeys(mesh.sizes, 0)
        if set(place) != set(mesh.sizes):
            raise ValueError(f"pass coordinates for {', '.join(mesh.sizes)}, or none at all")
        return self._send("call_one", arguments, mesh.slice(**place))  # type: ignore[no-any-return]

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterable[Future[R]]:
        """Call the function on all processes; return futures in the order of the replies."""
        arguments = self._arguments(args, kwargs)
        number, blob = self._sent(arguments), arguments.blob()
        table = arguments.mesh._engine.remote
        answers: Iterable[Future[R]]
        answers = table.invoke(number, arguments, blob, "stream", arguments.mesh)
        return answers

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the function on all processes without waiting; its exceptions are printed there."""
        arguments = self._arguments(args, kwargs)
        number = self._sent(arguments)
        table = arguments.mesh._engine.remote
        table.issue(number, self._name, arguments, arguments.blob(), DROPPED)

    def invalidating_objects(self) -> RemoteFunction[P, R]:
        """Make a failure also mark the opaque objects among the arguments; return self."""
        self._invalidates_objects = True
        return self

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<remote function {self._name}>"

    def __reduce__(self) -> Any:
        return RemoteFunction, (self.__remote_target__, self._rule)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        arguments = Arguments(self._name, args, kwargs)
        if arguments.groups:
            arguments.mesh._engine.create_groups(arguments.groups)
        return arguments

    def _sent(self, arguments: Arguments) -> int:
        if self._code is None:
            self._code = code_of(self.__remote_target__)
        return arguments.mesh._engine.remote.number_of(self.__remote_target__, self._code)

    def _issue(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = self._arguments(args, kwargs)
        if torch.is_grad_enabled():
            self._check_no_gradient(arguments)
        number = self._sent(arguments)
        table, key = arguments.mesh._engine.remote, arguments.key
        if key is not None and self._rule == "cached":
            # The results may depend on the state of the objects.
            key = key, arguments.objects
        known = None if key is None else self._result_specs.get(key)
        if known is not None:
            result_spec, blob = known
            return table.issue(number, self._name, arguments, blob, result_spec)
        blob = arguments.blob()
        if self._rule == "cached":
            result_spec, result = table.attempt(number, self._name, arguments, blob)
        else:
            if self._rule == "inspect":
                result_spec = DROPPED
            else:
                result_spec = infer_results(self._name, self._rule, arguments)  # type: ignore[arg-type]
            if self._invalidates_objects:
                objects = (p for p, one in enumerate(arguments.operands) if type(one) is OpaqueRef)
                result_spec = replace(result_spec, mutated=(*result_spec.mutated, *objects))
            result = table.issue(number, self._name, arguments, blob, result_spec)
        if self._rule == "cached" and result_spec.has_values:
            # Another call may return other values.
            return result
        if key is not None and not arguments.has_local_tensors:
            if len(self._result_specs) >= _KNOWN_MAX:
                self._result_specs.clear()
            self._result_specs[key] = result_spec, blob
        return result

    def _check_no_gradient(self, arguments: Arguments) -> None:
        for one in arguments.operands:
            if type(one) is Tensor and one.requires_grad:
                raise NoGradient(
                    f"{self._name} got a tensor that needs gradients, but remote functions do not"
                    " propagate gradients: detach it, call it under torch.no_grad(), or use"
                    " remote_autograd_function"
                )

    def _call(self, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = self._arguments(args, kwargs)
        return self._send(verb, arguments, arguments.mesh)

    def _send(self, verb: str, arguments: Arguments, mesh: DeviceMesh) -> Any:
        number, blob = self._sent(arguments), arguments.blob()
        engine = arguments.mesh._engine
        answer = engine.remote.invoke(number, arguments, blob, verb, mesh)
        if not arguments.operands:
            return answer
        return CompletionFuture(
            CheckedCompletion(engine, [one._ref for one in arguments.operands], answer)
        )


def call_on_shard_and_fetch(
    function: RemoteFunction[..., R], *args: Any, shard: dict[str, int] | None = None, **kwargs: Any
) -> Future[R]:
    """Call a remote function in one process; see `RemoteFunction.call_on`."""
    return function.call_on(shard, *args, **kwargs)


@overload
def remote(function: Callable[P, R], /, *, propagate: Rule = None) -> RemoteFunction[P, R]: ...
@overload
def remote(function: str, /, *, propagate: Rule = None) -> RemoteFunction[..., Any]: ...
@overload
def remote(*, propagate: Rule = None) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]: ...
def remote(function: Any = None, /, *, propagate: Rule = None) -> Any:
    """Make a function run on the processes of a mesh, on the local tensors.

    Args:
        function: The function, or its import path in the processes: `package.module.function`. It
            is sent to each process once, by its path if it can be imported, and pickled otherwise.
        propagate: How the shapes of the results are determined. `"cached"` (default): the program
            waits for the first call with arguments of a given kind, and later calls return tensors
            of the same shapes; while the results include values that are not tensors, the program
            waits for each call. A function (the rule): it receives tensors without values and
            returns tensors of the right shapes and dtypes; the values come from the remote
            function. The rule must write to the arguments that the remote function writes to, and
            must return such an argument itself if the remote function does. Every other result has
            separate memory. `"inspect"`: the function returns nothing and writes to nothing.

    Returns:
        An object that can be called like the function, and that has the verbs of endpoints.

    Example:
        >>> @remote(propagate=lambda x: torch.empty_like(x))
        ... def double(x: torch.Tensor) -> torch.Tensor:
        ...     return x * 2
    """
    if function is None:
        return lambda function: RemoteFunction(function, propagate)
    return RemoteFunction(function, propagate)
