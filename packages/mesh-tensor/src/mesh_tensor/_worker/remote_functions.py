"""Execution of the program's functions in a process."""

from __future__ import annotations

import pickle
import pkgutil
import traceback
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._instructions.compiled_op import Operand
from mesh_tensor._remote.call_protocol import (
    FirstCallResult,
    FunctionCode,
    GroupArg,
    MeshArg,
    ObjectArg,
    RemoteCall,
    TensorPart,
    describe,
    shape_of,
)
from mesh_tensor._remote.opaque_ref import OpaqueRef
from mesh_tensor._worker.failure import FailedValue, LostOperand, portable
from mesh_tensor._worker.torch_mesh import device_mesh, process_group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._worker.step_compiler import Step
    from mesh_tensor._worker.world import World

__all__ = [
    "adopt_step",
    "attempt",
    "check_writes",
    "function_step",
    "invoke",
    "keep_results",
    "put_in",
    "remote_step",
    "versions_of",
]


class ResultSpecMismatch(TypeError):
    """The results of a remote function differ from its result spec."""


def function_step(compiled_op: CompiledOp, world: World) -> Step:
    """Load a function, which other compiled ops and calls then refer to by number."""
    code: FunctionCode = compiled_op.detail
    try:
        world.functions[compiled_op.opcode] = _load(code)
    except Exception as error:
        # Each call of the function raises the error.
        world.functions[compiled_op.opcode] = _raiser(code.name, error)
    return lambda _, at: at


def _load(code: FunctionCode) -> Callable[..., Any]:
    if code.pickled is not None:
        function: Callable[..., Any] = pickle.loads(code.pickled)
        return function
    found = pkgutil.resolve_name(code.name)
    # Importing a decorated function returns its wrapper; call the original function.
    return getattr(found, "__remote_target__", found)  # type: ignore[no-any-return]


def _raiser(name: str, error: Exception) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"function {name} cannot be loaded in this process: {error}") from error

    return function


def remote_step(compiled_op: CompiledOp, world: World) -> Step:
    """Call a function, and store the results that its spec describes."""
    call: RemoteCall = compiled_op.detail
    values, operands, rest_len = world.values, compiled_op.operands, compiled_op.instruction_len - 1
    first = operands + 1

    def step(code: list[int], at: int) -> int:
        given = [values[slot] for slot in code[at : at + operands]]
        versions = versions_of(given)
        try:
            result, arguments = _called(
                world, call.function, world.given[code[at + operands]], given
            )
        except Exception as error:
            if not call.kept and not isinstance(error, LostOperand):
                # Print the error, because the program may never fetch anything that depends on the
                # call.
                traceback.print_exception(error)
            raise
        if not call.is_checked:
            return at + rest_len
        check_writes(compiled_op, given, versions)
        kept = keep_results(compiled_op.name, call, result, arguments)
        for index, value in enumerate(kept):
            values[code[at + first + index]] = value
        return at + rest_len

    return step


def adopt_step(compiled_op: CompiledOp, world: World) -> Step:
    """Store the results of a first call."""
    values, kept = world.values, [place for place, _ in compiled_op.detail.kept]
    operands, rest_len = compiled_op.operands, compiled_op.instruction_len - 1

    def step(code: list[int], at: int) -> int:
        leaves = world.held.pop(code[at + operands])
        for index, place in enumerate(kept):
            values[code[at + operands + 1 + index]] = _plain(leaves[place])
        return at + rest_len

    return step


def invoke(world: World, function: int, blob: bytes, slots: Sequence[int]) -> Any:
    """Call a function for its value, which is sent to the program.

    Raises:
        Exception: The function raised it.
    """
    given = [world.values[slot] for slot in slots]
    lost = next((one for one in given if isinstance(one, FailedValue)), None)
    if lost is not None:
        raise lost.failure.raised()
    result, _ = _called(world, function, blob, given)
    return pytree.tree_map_only(torch.Tensor, world.outgoing, result)


def attempt(
    world: World, function: int, blob: bytes, slots: Sequence[int], token: int
) -> FirstCallResult:
    """Call a function to observe its results, and hold them until they are adopted or dropped."""
    given = [world.values[slot] for slot in slots]
    if any(isinstance(one, FailedValue) for one in given):
        return FirstCallResult(has_failed_operand=True)
    versions = versions_of(given)
    try:
        result, arguments = _called(world, function, blob, given)
        leaves, spec = pytree.tree_flatten(result)
        result = pytree.tree_unflatten([_plain(one, wrapped=True) for one in leaves], spec)
        for argument, value in zip(arguments, given, strict=True):
            if argument is not None and argument.shape != value.shape:
                raise ResultSpecMismatch(
                    "a remote function may not change the shape of an argument"
                )
        result_spec = describe(result, arguments, versions)
    except Exception as error:
        return FirstCallResult(error=portable(error))
    world.held[token] = pytree.tree_leaves(result)
    return FirstCallResult(result_spec)


def _called(
    world: World, function: int, blob: bytes, given: list[Any]
) -> tuple[Any, list[torch.Tensor | None]]:
    """Call a function; return the result, and the tensors that the function received."""
    if any(isinstance(one, FailedValue) for one in given):
        raise LostOperand
    arguments = [one.detach() if isinstance(one, torch.Tensor) else None for one in given]

    args, kwargs = put_in(world, blob, given, arguments)
    try:
        with torch.enable_grad():
            result = world.functions[function](*args, **kwargs)
    except SystemExit as error:
        raise RuntimeError(f"a remote function ended with sys.exit({error.code!r})") from error
    return result, arguments


def put_in(
    world: World, blob: bytes, given: Sequence[Any], tensors: Sequence[torch.Tensor | None]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call.

    Args:
        world: The world of the process.
        blob: The pickled arguments, with placeholders for slots.
        given: The values of the slots.
        tensors: The tensors among these values, as they are passed to the function.
    """

    def part(leaf: Any) -> Any:
        kind = type(leaf)
        if kind is Operand:
            return tensors[leaf.index]
        if kind is ObjectArg:
            return OpaqueRef(given[leaf.index])
        if kind is MeshArg:
            return device_mesh(world, leaf.ranks, leaf.device)
        if kind is GroupArg:
            return process_group(world, leaf.ranks, leaf.dims)
        return leaf

    made: tuple[tuple[Any, ...], dict[str, Any]]
    made = pytree.tree_map(part, pickle.loads(blob))
    return made


def keep_results(
    name: str, call: RemoteCall, result: Any, arguments: list[torch.Tensor | None]
) -> list[Any]:
    """Return the results to keep, each as the spec describes it.

    Raises:
        ResultSpecMismatch: A result differs from the spec, or from a value that the program already
            has.
    """
    leaves = pytree.tree_leaves(result)
    if len(leaves) != call.count:
        raise ResultSpecMismatch(
            f"{name} returned {len(leaves)} results instead of {call.count}: check its propagation"
        )
    for place, operand in call.returned:
        if not _is_same(leaves[place], arguments[operand]):
            raise ResultSpecMismatch(
                f"{name} returned another tensor than the argument that its rule returns: have the "
                "rule return torch.empty_like of that"
            )
    for place, value in call.constants:
        if not _is_equal(leaves[place], value):
            raise ResultSpecMismatch(
                f"{name} returned {_shown(leaves[place])} instead of {value!r}: check its"
                " propagation"
            )
    fitted: dict[int, Any] = {}
    for place, part in call.kept:
        fitted[place] = _fit(name, leaves, place, part, arguments, fitted)
    return list(fitted.values())


def versions_of(given: Sequence[Any]) -> list[int]:
    """Return the version counter of each operand; 0 for operands that are not tensors."""
    return [one._version if isinstance(one, torch.Tensor) else 0 for one in given]


def check_writes(compiled_op: CompiledOp, given: Sequence[Any], versions: Sequence[int]) -> None:
    """Check that a function has not written to operands that the program does not know of.

    Raises:
        ResultSpecMismatch: It has. Gradients computed from such an operand would be wrong.
    """
    known = [given[place] for place in compiled_op.mutated]
    for place, (before, now) in enumerate(zip(versions, versions_of(given), strict=True)):
        if now == before or place in compiled_op.detail.objects:
            continue
        if not any(_shares(one, given[place]) for one in known):
            raise ResultSpecMismatch(
                f"{compiled_op.name} writes to tensor {place} of its arguments, but its rule or its"
                " first call did not: write to it in the rule too"
            )


def _is_same(leaf: Any, argument: torch.Tensor | None) -> bool:
    """Return whether a result is an argument, or a tensor with the same memory and layout."""
    if leaf is argument:
        return True
    return (
        isinstance(leaf, torch.Tensor)
        and isinstance(argument, torch.Tensor)
        and leaf.untyped_storage()._cdata == argument.untyped_storage()._cdata
        and shape_of(leaf, None) == shape_of(argument, None)
    )


def _is_equal(leaf: Any, value: Any) -> bool:
    if type(leaf) is not type(value):
        return False
    return bool(leaf == value or (leaf != leaf and value != value))


def _shown(leaf: Any) -> str:
    return f"a tensor of {leaf.dtype}" if isinstance(leaf, torch.Tensor) else repr(leaf)


def _plain(leaf: Any, wrapped: bool = False) -> Any:
    """Return a result without autograd history, and the value of an opaque object."""
    if isinstance(leaf, torch.Tensor):
        if type(leaf) is not torch.Tensor:
            local = getattr(leaf, "to_local", None)
            leaf = local() if local is not None else leaf
        return leaf.detach() if leaf.requires_grad or leaf.grad_fn is not None else leaf
    if isinstance(leaf, OpaqueRef) and not wrapped:
        return leaf.value
    return leaf


def _fit(
    name: str,
    leaves: list[Any],
    place: int,
    part: Any,
    arguments: list[torch.Tensor | None],
    before: Mapping[int, Any],
) -> Any:
    """Convert a result to its description: same kind, same layout, no undeclared shared storage.

    Args:
        name: The name of the function.
        leaves: Its results.
        place: The index of the result.
        part: The description of the result.
        arguments: The tensors that the function received.
        before: The earlier results, as they are kept.

    Raises:
        ResultSpecMismatch: The result does not match the description.
    """
    leaf = _plain(leaves[place], wrapped=True)
    if not isinstance(part, TensorPart):
        if not isinstance(leaf, OpaqueRef):
            raise ResultSpecMismatch(
                f"{name} returned a {type(leaf).__qualname__} instead of an OpaqueRef"
            )
        return leaf.value
    if not isinstance(leaf, torch.Tensor):
        raise ResultSpecMismatch(f"{name} returned a {type(leaf).__qualname__} instead of a tensor")
    if tuple(leaf.shape) != part.shape or leaf.dtype != part.dtype:
        raise ResultSpecMismatch(
            f"{name} returned {leaf.dtype} of shape {tuple(leaf.shape)} instead of {part.dtype} of"
            f" shape {part.shape}: check its propagation"
        )
    found = shape_of(leaf, part.aliased)
    is_alike = found.strides == part.strides and found.offset == part.offset
    shared = [one for one in (*arguments, *before.values()) if _shares(one, leaf)]
    if part.aliased is not None:
        expected = arguments[part.aliased] if part.aliased >= 0 else before.get(~part.aliased)
        if is_alike and (not shared or _shares(expected, leaf)):
            return leaf
        if shared:
            raise ResultSpecMismatch(f"{name} returned a different view than expected")
    elif is_alike and not shared:
        return leaf
    return _laid_out(name, leaf, part)


def _shares(one: Any, leaf: torch.Tensor) -> bool:
    return (
        isinstance(one, torch.Tensor)
        and one.untyped_storage()._cdata == leaf.untyped_storage()._cdata
    )


def _laid_out(name: str, leaf: torch.Tensor, part: TensorPart) -> torch.Tensor:
    """Copy a result into separate memory, with the layout that the program expects.

    Raises:
        ResultSpecMismatch: Elements of that layout share memory, as after `expand`.
    """
    last = sum((size - 1) * stride for size, stride in zip(part.shape, part.strides, strict=True))
    memory = torch.empty(part.offset + last + 1, dtype=part.dtype, device=leaf.device)
    out = memory.as_strided(part.shape, part.strides, part.offset)
    if torch._debug_has_internal_overlap(out) == 1:
        raise ResultSpecMismatch(
            f"{name} returned a tensor with strides {tuple(leaf.stride())} instead of"
            f" {part.strides}: call contiguous() on the result"
        )
    return out.copy_(leaf)
