"""Data types that both sides of a remote call share: argument placeholders and result specs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._instructions.compiled_op import Operand
from mesh_tensor._remote.opaque_ref import OpaqueRef

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ATOMS",
    "DROPPED",
    "ConstantPart",
    "FirstCallResult",
    "FunctionCode",
    "GroupArg",
    "MeshArg",
    "ObjectArg",
    "ObjectPart",
    "RemoteCall",
    "ResultSpec",
    "TensorPart",
    "describe",
    "shape_of",
]

#: Types that are compared by value, and whose equal values are interchangeable.
ATOMS = (
    int,
    bool,
    str,
    bytes,
    complex,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


@dataclass(frozen=True)
class FunctionCode:
    """The serialized form of a function.

    Attributes:
        name: The name; if the function can be imported, its import path.
        pickled: The pickled function, if it cannot be imported.
    """

    name: str
    pickled: bytes | None


@dataclass(frozen=True)
class ObjectArg:
    """A placeholder in the arguments for an object whose slot is in the instructions."""

    index: int


@dataclass(frozen=True)
class MeshArg:
    """A placeholder for a mesh; the process substitutes PyTorch's device mesh of these ranks."""

    ranks: bytes
    device: str


@dataclass(frozen=True)
class GroupArg:
    """A placeholder for the process group along dimensions of a mesh."""

    ranks: bytes
    dims: tuple[str, ...]


@dataclass(frozen=True)
class TensorPart:
    """A new tensor among the results.

    Attributes:
        shape: The shape.
        strides: The strides, in elements.
        offset: The offset in its storage, in elements.
        dtype: The dtype.
        device: The device.
        aliased: The index of the operand whose storage it shares. A negative value is the bitwise
            complement of the index of a result.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    aliased: int | None


@dataclass(frozen=True)
class ObjectPart:
    """An object that stays in its process."""


@dataclass(frozen=True)
class ConstantPart:
    """A value that is the same on each process, and known from the first call on."""

    value: Any


Part = TensorPart | ObjectPart | ConstantPart | Operand


@dataclass(frozen=True)
class ResultSpec:
    """A description of the results of a function for arguments of one kind.

    Attributes:
        parts: The results, as a flat sequence.
        spec: The tree of which `parts` are the leaves.
        mutated: The indexes of the operands that the function writes to.
        is_checked: Whether each process compares the results of the function with the spec. False
            if the results are dropped.
    """

    parts: tuple[Part, ...]
    spec: pytree.TreeSpec
    mutated: tuple[int, ...]
    is_checked: bool = True

    @property
    def constants(self) -> tuple[tuple[int, Any], ...]:
        """The results that are not tensors, each with its index."""
        return tuple(
            (place, part.value)
            for place, part in enumerate(self.parts)
            if isinstance(part, ConstantPart)
        )

    @property
    def has_values(self) -> bool:
        """Whether the results include values, which may differ from call to call."""
        return any(value is not None for _, value in self.constants)


#: The result spec of a function whose results are dropped.
DROPPED = ResultSpec((ConstantPart(None),), pytree.tree_flatten(None)[1], (), is_checked=False)


@dataclass(frozen=True)
class RemoteCall:
    """The details of a compiled op that calls a remote function.

    Attributes:
        function: The number of the compiled op that sent the function.
        kept: The indexes of the results that are kept, and the description of each.
        returned: The results that are operands: the index of each result, and of its operand.
        constants: The indexes of the other results, and the expected value of each.
        objects: The indexes of the operands that are not tensors.
        count: The number of results.
        is_checked: Whether the process compares the results with these attributes.
    """

    function: int
    kept: tuple[tuple[int, TensorPart | ObjectPart], ...]
    returned: tuple[tuple[int, int], ...]
    constants: tuple[tuple[int, Any], ...]
    objects: tuple[int, ...]
    count: int
    is_checked: bool


@dataclass(frozen=True)
class FirstCallResult:
    """The outcome of a first call: a result spec, or an error."""

    result_spec: ResultSpec | None = None
    error: BaseException | None = None
    has_failed_operand: bool = False


def describe(
    result: Any, operands: Sequence[Any], versions: Sequence[int], *, is_rule: bool = False
) -> ResultSpec:
    """Describe the results of a function, or of its rule.

    A result is described as an operand only if the function also writes to that operand. The
    results of a rule have no other meaning for memory: each describes a tensor with separate
    memory.

    Args:
        result: The return value.
        operands: The tensors among the operands, and None for other operands.
        versions: The version counter of each operand before the call.
        is_rule: Whether a rule returned the result, rather than the function.
    """
    mutated = tuple(
        place
        for place, (one, version) in enumerate(zip(operands, versions, strict=True))
        if one is not None and one._version != version
    )
    leaves, spec = pytree.tree_flatten(result)
    known = {
        one.untyped_storage()._cdata: place
        for place, one in reversed(list(enumerate(operands)))
        if one is not None and (not is_rule or place in mutated)
    }
    parts: list[Part] = []
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, OpaqueRef):
            parts.append(ObjectPart())
        elif not isinstance(leaf, torch.Tensor):
            parts.append(ConstantPart(leaf))
        else:
            same = next((place for place in mutated if operands[place] is leaf), None)
            if same is not None:
                parts.append(Operand(same))
                continue
            storage = leaf.untyped_storage()._cdata
            aliased = known.get(storage)
            if is_rule and aliased is None:
                parts.append(shape_of(torch.empty_like(leaf), None))
                continue
            parts.append(shape_of(leaf, aliased))
            known.setdefault(storage, ~index)
    return ResultSpec(tuple(parts), spec, mutated)


def shape_of(tensor: torch.Tensor, aliased: int | None) -> TensorPart:
    """Describe a tensor."""
    return TensorPart(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.dtype,
        tensor.device,
        aliased,
    )
