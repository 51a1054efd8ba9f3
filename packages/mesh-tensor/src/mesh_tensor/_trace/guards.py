"""Detects changes of the state that a traced function depends on, other than its arguments.

The guards cover everything that the function can reach by name: closures, globals, the object of a
method, and functions of the same module that it calls. Numbers and other plain values are compared
by value. For modules and optimizers, the settings and the identities of their tensors are compared.
"""

from __future__ import annotations

import dis
import sys
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Guards"]

_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)
#: How deep the guards look into objects and containers.
_DEPTH_MAX = 3
_ITEMS_MAX = 256
_SEQUENCES = (list, tuple, set, frozenset)
_NOT_OF_PROGRAM = {"torch", "mesh_core", "mesh_tensor", "numpy", *sys.stdlib_module_names} - {
    "__main__"
}


class Guards:
    """Everything that a function can reach.

    Args:
        function: The function.
        arguments: The arguments of the call that are not tensors.
    """

    def __init__(self, function: Callable[..., Any], arguments: Iterable[Any]) -> None:
        self._readers: list[tuple[str, Callable[[], Any]]] = []
        self._functions: set[FunctionType] = set()
        self._follow(function)
        for index, one in enumerate(arguments):
            self._readers.append((f"argument {index}", partial(_same, one)))

    def state(self) -> tuple[Any, ...]:
        """Return the current state of each name, for comparison with an earlier state."""
        return tuple(_state_of(read(), 0) for _, read in self._readers)

    def changed(self, before: tuple[Any, ...]) -> str:
        """Return the first name whose state has changed."""
        for (name, _), was, now in zip(self._readers, before, self.state(), strict=True):
            if was != now:
                return name
        return "something"

    def parameters(self) -> Iterator[Tensor]:
        """Yield the tensors that may accumulate gradients."""
        for _, read in self._readers:
            yield from _leaves(read(), 0)

    def _follow(self, function: Callable[..., Any]) -> None:
        if isinstance(function, MethodType):
            owner = function.__self__
            self._readers.append(("self", lambda: owner))
            function = function.__func__
        # A wrapped function is reached through a name in its wrapper.
        if not isinstance(function, FunctionType) or function in self._functions:
            return
        self._functions.add(function)
        free = function.__code__.co_freevars
        for name, cell in zip(free, function.__closure__ or (), strict=True):
            self._readers.append((name, partial(_contents, cell)))
            self._follow_value(function, _contents(cell))
        space = function.__globals__
        for name in _globals_of(function.__code__):
            if name in space:
                self._readers.append((name, partial(space.get, name)))
                self._follow_value(function, space[name])

    def _follow_value(self, function: FunctionType, value: Any) -> None:
        if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
            self._follow(value)


def _same(value: Any) -> Any:
    return value


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _globals_of(code: CodeType) -> Iterator[str]:
    for one in dis.get_instructions(code):
        if one.opname == "LOAD_GLOBAL":
            yield one.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)


def _state_of(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, torch.nn.Module):
        return _module_state(value)
    if isinstance(value, torch.optim.Optimizer):
        return _optimizer_state(value)
    if depth < _DEPTH_MAX:
        if kind in _SEQUENCES and len(value) <= _ITEMS_MAX:
            return kind, *(_state_of(one, depth + 1) for one in value)
        if kind is dict and len(value) <= _ITEMS_MAX:
            return dict, *((key, _state_of(one, depth + 1)) for key, one in value.items())
        if _is_of_program(value):
            return id(value), _state_of(vars(value), depth + 1)
    return id(value)


def _module_state(module: torch.nn.Module) -> list[Any]:
    state: list[Any] = []
    for one in module.modules():
        own = vars(one)
        state.append(id(one))
        state += [value for value in own.values() if type(value) in _PLAIN]
        state += map(id, own["_parameters"].values())
        state += map(id, own["_buffers"].values())
    return state


def _optimizer_state(optimizer: torch.optim.Optimizer) -> list[Any]:
    state: list[Any] = [id(optimizer)]
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name == "params":
                state += map(id, value)
            else:
                state.append(_state_of(value, 1))
    for kept in optimizer.state.values():
        state += map(id, kept.values())
    return state


def _leaves(value: Any, depth: int) -> Iterator[Tensor]:
    kind = type(value)
    if kind is Tensor:
        if value.requires_grad and value.is_leaf:
            yield value
    elif isinstance(value, torch.nn.Module):
        yield from _distributed(value.parameters())
    elif isinstance(value, torch.optim.Optimizer):
        for group in value.param_groups:
            yield from _distributed(group["params"])
    elif depth < _DEPTH_MAX:
        if kind in _SEQUENCES or kind is dict:
            for one in value.values() if kind is dict else value:
                yield from _leaves(one, depth + 1)
        elif _is_of_program(value):
            yield from _leaves(vars(value), depth + 1)


def _distributed(parameters: Iterable[Any]) -> Iterator[Tensor]:
    return (one for one in parameters if type(one) is Tensor)


def _is_of_program(value: Any) -> bool:
    """Return whether the guards look into an object: not into objects of PyTorch and Python."""
    module = getattr(type(value), "__module__", "").partition(".")[0]
    return module not in _NOT_OF_PROGRAM and hasattr(value, "__dict__")
