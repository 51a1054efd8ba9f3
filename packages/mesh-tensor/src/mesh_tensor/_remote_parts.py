"""What both sides of a remote function know: stand-ins among its arguments, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._opaque import OpaqueRef
from mesh_tensor._plan import Operand

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ConstantPart",
    "FunctionCode",
    "GroupArg",
    "MeshArg",
    "ObjectArg",
    "ObjectPart",
    "Pattern",
    "RemoteCall",
    "TensorPart",
    "Trial",
    "describe",
    "shape_of",
]


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
class Pattern:
    """What a function gives for arguments of one kind.

    Attributes:
        parts: Its results, flat.
        spec: The tree that they are the leaves of.
        mutated: Which operands it writes to.
    """

    parts: tuple[Part, ...]
    spec: pytree.TreeSpec
    mutated: tuple[int, ...]


@dataclass(frozen=True)
class RemoteCall:
    """What a plan of this kind calls, and what it keeps of the results.

    Attributes:
        function: The number of the plan that brought the function.
        kept: The places of the results that are kept, and what each was promised to be.
        count: How many results there are.
    """

    function: int
    kept: tuple[tuple[int, TensorPart | ObjectPart], ...]
    count: int


@dataclass(frozen=True)
class Trial:
    """What came of a first call: a pattern, or why there is none."""

    pattern: Pattern | None = None
    error: BaseException | None = None
    is_poisoned: bool = False


def describe(result: Any, operands: Sequence[Any], versions: Sequence[int]) -> Pattern:
    """Describes what a function gave.

    Args:
        result: What it returned.
        operands: The tensors that it got, and None for whatever else it got.
        versions: How often each had been written to before.
    """
    leaves, spec = pytree.tree_flatten(result)
    known = {
        one.untyped_storage()._cdata: place
        for place, one in reversed(list(enumerate(operands)))
        if one is not None
    }
    parts: list[Part] = []
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, OpaqueRef):
            parts.append(ObjectPart())
        elif not isinstance(leaf, torch.Tensor):
            parts.append(ConstantPart(leaf))
        else:
            same = [place for place, one in enumerate(operands) if one is leaf]
            if same:
                parts.append(Operand(same[0]))
                continue
            storage = leaf.untyped_storage()._cdata
            parts.append(shape_of(leaf, known.get(storage)))
            known.setdefault(storage, ~index)
    mutated = tuple(
        place
        for place, (one, version) in enumerate(zip(operands, versions, strict=True))
        if one is not None and one._version != version
    )
    return Pattern(tuple(parts), spec, mutated)


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
