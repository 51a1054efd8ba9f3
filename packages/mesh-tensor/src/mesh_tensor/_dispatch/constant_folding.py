"""Scalars whose value the program knows, as it has made them itself: a step count, a constant.

torch reads such values back again and again (an optimizer its steps), and asking the processes for
each would be slow. So what is made of known scalars alone is worked out here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._tensor.meta import Meta

__all__ = ["KnownScalar", "can_fold", "fold"]


class KnownScalar:
    """The value of a scalar, shared by all tensors that have the scalar's storage."""

    __slots__ = ("family", "value")

    def __init__(self, value: torch.Tensor, family: list[bool] | None = None) -> None:
        self.value = value
        #: Whether it still holds: one list for all that share memory.
        self.family = [True] if family is None else family

    @property
    def holds(self) -> bool:
        """Whether the value is what the processes have."""
        return self.family[0]


def can_fold(func: Any, operands: Sequence[Meta], results: Sequence[Meta]) -> bool:
    """Whether an operation on known scalars gives known ones."""
    if torch.Tag.nondeterministic_seeded in func.tags or not operands:
        return False
    return all(not meta.shape and meta.device.type == "cpu" for meta in (*operands, *results))


def fold(
    is_scalar: bool,
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    operands: Sequence[Tensor],
    result: Any,
) -> None:
    """Notes what an operation with a known scalar among its operands has made of it."""
    known = [one._known_scalar for one in operands]
    if is_scalar and all(one is not None and one.holds for one in known):
        plain_args, plain_kwargs = pytree.tree_map_only(
            Tensor, lambda one: one._known_scalar.value, (args, kwargs)
        )
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            made = func(*plain_args, **plain_kwargs)
        if isinstance(result, Tensor) and isinstance(made, torch.Tensor):
            if not any(result is one for one in operands):
                storage = made.untyped_storage()._cdata
                family = next(
                    (
                        one.family
                        for one in known
                        if one is not None and one.value.untyped_storage()._cdata == storage
                    ),
                    None,
                )
                result._known_scalar = KnownScalar(made, family)
            return
    for one in known:
        if one is not None and _may_change(func):
            one.family[0] = False


def _may_change(func: Any) -> bool:
    """Whether an operation writes to an operand, or gives something by which it can be written."""
    return any(argument.alias_info is not None for argument in func._schema.arguments)
