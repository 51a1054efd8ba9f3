"""Scalars whose value the program knows because it created them: step counts and constants.

PyTorch reads such values frequently (an optimizer reads its step count at each step), and fetching
each of them from the processes would be slow. Results that are computed from known scalars alone
are therefore also computed in the program.
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
    """The value of a scalar, shared by all tensors that share its storage."""

    __slots__ = ("family", "value")

    def __init__(self, value: torch.Tensor, family: list[bool] | None = None) -> None:
        self.value = value
        #: Whether the value is still valid: one list for all tensors that share memory.
        self.family = [True] if family is None else family

    @property
    def holds(self) -> bool:
        """Whether the value equals the value in the processes."""
        return self.family[0]


def can_fold(func: Any, operands: Sequence[Meta], results: Sequence[Meta]) -> bool:
    """Return whether an operation on known scalars has known results."""
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
    """Update the known scalars after an operation with at least one known scalar as operand."""
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
    """Return whether an operation writes to an operand or returns a view of one."""
    return any(argument.alias_info is not None for argument in func._schema.arguments)
