"""The amount of work of an operation: computation, and memory traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from mesh_tensor._instructions.compiled_op import Number, Operand
from mesh_tensor._simulator.cost_model import Work
from mesh_tensor._worker.step_compiler import operator_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._tensor.meta import Kind

__all__ = ["device_of", "footprint", "nbytes_of", "work_of"]

#: Operations that read no more of their first operand than they return.
_GATHERS = {
    "aten.embedding.default",
    "aten.index.Tensor",
    "aten.index_select.default",
    "aten.gather.default",
    "aten.take.default",
}
#: Operations that write only to few elements of their first operand.
_SCATTERS = {
    "aten.index_put_.default",
    "aten._index_put_impl_.default",
    "aten.index_add_.default",
    "aten.scatter_.src",
    "aten.scatter_.value",
    "aten.scatter_add_.default",
    "aten.index_fill_.int_Scalar",
}
#: Operations that do not read the values that they overwrite.
_FILLS = ("zero_", "fill_", "copy_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_")
#: Operations that allocate memory without writing to it.
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_")


def nbytes_of(kind: Kind) -> int:
    """Return the minimum number of bytes of the storage of a tensor."""
    reach = kind.offset + 1
    for size, stride in zip(kind.shape, kind.strides, strict=True):
        if size == 0:
            return 0
        reach += (size - 1) * stride
    return reach * kind.dtype.itemsize


def footprint(kind: Kind) -> int:
    """Return the number of bytes that a tensor occupies; repeated elements count once."""
    count = 1
    for size, stride in zip(kind.shape, kind.strides, strict=True):
        count *= size if stride else min(size, 1)
    return count * kind.dtype.itemsize


def device_of(kinds: Sequence[Kind]) -> str:
    """Return the type of the executing device: the CPU only if all tensors are there."""
    types = [kind.device.type for kind in kinds]
    return next((one for one in types if one != "cpu"), "cpu")


def work_of(
    compiled_op: CompiledOp, operands: Sequence[Kind], results: Sequence[tuple[Kind, int | None]]
) -> Work | None:
    """Return the work of a PyTorch operation; None if it transfers nothing.

    Args:
        compiled_op: The operation.
        operands: The operands.
        results: The new results, each with the index of the operand whose storage it shares.
    """
    name = compiled_op.name.split(".")
    made = [kind for kind, aliased in results if aliased is None]
    written = [*made, *(operands[place] for place in compiled_op.mutated)]
    if not written or name[1] in _EMPTY or name[1] in ("set_", "detach_"):
        return None
    kinds = [*made, *operands]
    nbytes = sum(map(footprint, written)) + _read_bytes(compiled_op.name, name[1], operands, made)
    return Work(
        compiled_op.name,
        device_of(kinds),
        _dtype_of(operands, written),
        _flops_of(compiled_op, operands, results),
        nbytes,
        tuple(operands),
        tuple(written),
    )


def _read_bytes(name: str, short: str, operands: Sequence[Kind], made: Sequence[Kind]) -> int:
    if not operands:
        return 0
    if name in _GATHERS:
        return sum(map(footprint, [*operands[1:], *made]))
    if name in _SCATTERS:
        # Only few elements of the first operand are written, but all of it was counted: subtract
        # it.
        return 2 * sum(map(footprint, operands[1:])) - footprint(operands[0])
    return sum(map(footprint, operands[1:] if short in _FILLS else operands))


def _dtype_of(operands: Sequence[Kind], written: Sequence[Kind]) -> torch.dtype:
    floats = [kind.dtype for kind in operands if kind.dtype.is_floating_point]
    return floats[0] if floats else written[0].dtype


def _flops_of(
    compiled_op: CompiledOp, operands: Sequence[Kind], results: Sequence[tuple[Kind, int | None]]
) -> int:
    packet = operator_of(compiled_op.name, compiled_op.detail).overloadpacket  # type: ignore[attr-defined]
    formula = flop_registry.get(packet)
    if formula is None:
        return 0

    def meta_tensor(kind: Kind) -> torch.Tensor:
        return torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device="meta")

    def argument(one: Any) -> Any:
        if type(one) is Operand:
            return meta_tensor(operands[one.index])
        return 1.0 if type(one) is Number else one

    args, kwargs = pytree.tree_map(argument, (list(compiled_op.args), dict(compiled_op.kwargs)))
    given = [meta_tensor(kind) for kind, _ in results]
    out: Any = given[0] if len(given) == 1 else tuple(given)
    return int(formula(*args, **kwargs, out_val=out))
