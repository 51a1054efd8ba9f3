"""What both sides of a remote function know: stand-ins among its arguments, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._engine.plan import Operand
from mesh_tensor._remote.opaque_ref import OpaqueRef

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ATOMS",
    "DROPPED",
    "ConstantPart",
    "FunctionCode",
    "GroupArg",
    "MeshArg",
    "ObjectArg",
    "ObjectPart",
    "RemoteCall",
    "ResultSpec",
    "TensorPart",
    "Trial",
    "describe",
    "shape_of",
]

#: Types of values that are compared by value, and of which two that are equal are alike.
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
    """How a function travels.

    Attributes:
        name: What it is called: where it can be imported, the path to import it by.
        pickled: The function itself, where it cannot be imported.
    """

    name: str
    pickled: bytes | None


@dataclass(frozen=True)
class ObjectArg:
    """Stands among the arguments for an object that the words name."""

    index: int


@dataclass(frozen=True)
class MeshArg:
    """Stands among the arguments for a mesh; the process gets torch's own of these ranks."""

    ranks: bytes
    device: str


@dataclass(frozen=True)
class GroupArg:
    """Stands for the group of a process along dimensions of a mesh."""

    ranks: bytes
    dims: tuple[str, ...]


@dataclass(frozen=True)
class TensorPart:
    """A new tensor among the results.

    Attributes:
        shape: Its shape.
        strides: Its strides.
        offset: Where in its storage it begins.
        dtype: Its type.
        device: Where it is.
        aliased: The operand whose storage it has; below zero, the complement of the place of the
            result whose storage it has.
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
    """A value that is the same on each process, and is known from the first call on."""

    value: Any


Part = TensorPart | ObjectPart | ConstantPart | Operand


@dataclass(frozen=True)
class ResultSpec:
    """What a function gives for arguments of one kind.

    Attributes:
        parts: Its results, flat.
        spec: The tree that they are the leaves of.
        mutated: Which operands it writes to.
        is_checked: Whether each process compares what the function returns with the spec;
            False where the results are dropped.
    """

    parts: tuple[Part, ...]
    spec: pytree.TreeSpec
    mutated: tuple[int, ...]
    is_checked: bool = True

    @property
    def constants(self) -> tuple[tuple[int, Any], ...]:
        """The values among the results that are not tensors, each with its place."""
        return tuple(
            (place, part.value)
            for place, part in enumerate(self.parts)
            if isinstance(part, ConstantPart)
        )

    @property
    def has_values(self) -> bool:
        """Whether the results include values, which may differ from call to call."""
        return any(value is not None for _, value in self.constants)


#: The result spec of a function of which the results are dropped, whatever they are.
DROPPED = ResultSpec((ConstantPart(None),), pytree.tree_flatten(None)[1], (), is_checked=False)


@dataclass(frozen=True)
class RemoteCall:
    """What a plan of this kind calls, and what it keeps of the results.

    Attributes:
        function: The number of the plan that brought the function.
        kept: The places of the results that are kept, and what each was promised to be.
        returned: The results that are operands themselves: the place of each, and the operand.
        constants: The places of the other results, and the value that each was promised to be.
        objects: The operands that are not tensors.
        count: How many results there are.
        is_checked: Whether the process compares the results with all of this.
    """

    function: int
    kept: tuple[tuple[int, TensorPart | ObjectPart], ...]
    returned: tuple[tuple[int, int], ...]
    constants: tuple[tuple[int, Any], ...]
    objects: tuple[int, ...]
    count: int
    is_checked: bool


@dataclass(frozen=True)
class Trial:
    """What came of a first call: a result spec, or why there is none."""

    result_spec: ResultSpec | None = None
    error: BaseException | None = None
    is_poisoned: bool = False


def describe(
    result: Any, operands: Sequence[Any], versions: Sequence[int], *, is_rule: bool = False
) -> ResultSpec:
    """Describes the results of a function, or those of its rule.

    A result is an operand itself only if the function also writes to that operand. The results of a
    rule say nothing else about memory: each of them describes a tensor with memory of its own.

    Args:
        result: What it returned.
        operands: The tensors that it got, and None for whatever else it got.
        versions: How often each had been written to before.
        is_rule: Whether a rule returned it, and not the function.
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
    """Describes a tensor."""
    return TensorPart(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.dtype,
        tensor.device,
        aliased,
    )
