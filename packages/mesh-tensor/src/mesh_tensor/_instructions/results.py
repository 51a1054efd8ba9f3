"""The results of compiled ops, as the program describes them before the processes compute them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh_tensor._instructions.compiled_op import Operand
    from mesh_tensor._tensor.meta import Meta

__all__ = ["DataDependentResults", "NewTensor"]


@dataclass(frozen=True)
class NewTensor:
    """A new tensor in the result.

    Attributes:
        meta: Its metadata.
        aliased: The index of the operand whose storage it shares, if any.
    """

    meta: Meta
    aliased: int | None


@dataclass(frozen=True)
class DataDependentResults:
    """Represents the results of an operation until the processes have described them.

    Attributes:
        returned: The return values in order: an index into the results that the processes describe,
            or an `Operand` that is returned.
        is_single: Whether the operation returns a single value rather than a tuple.
        is_learned: Whether the description depends only on the kinds of the operands.
        mutated: The indexes of the operands that it writes to. Their shape may change.
    """

    returned: tuple[int | Operand, ...]
    is_single: bool
    is_learned: bool
    mutated: tuple[int, ...]
