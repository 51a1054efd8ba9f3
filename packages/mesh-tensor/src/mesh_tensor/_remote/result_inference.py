"""Determines the results of a remote function without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._dispatch.fake_propagation import without_values
from mesh_tensor._errors import UnsupportedOp
from mesh_tensor._remote.call_protocol import ATOMS, ObjectPart, ResultSpec, TensorPart, describe
from mesh_tensor._remote.opaque_ref import OpaqueRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_tensor._remote.arguments import Arguments

__all__ = ["infer_results"]


def infer_results(name: str, rule: Callable[..., Any], arguments: Arguments) -> ResultSpec:
    """Run a rule on tensors without values.

    Args:
        name: The name of the function.
        rule: Returns the function's results, and writes to the arguments that the function writes
            to.
        arguments: The arguments of the function.

    Raises:
        UnsupportedOp: The rule changes the shape of an argument, or returns a value that it cannot
            know.
        Exception: The rule raised it.
    """
    with without_values(), torch.no_grad():
        args, kwargs, operands = arguments.fake_arguments()
        versions = [0 if one is None else one._version for one in operands]
        shapes = [None if one is None else one.shape for one in operands]
        result = rule(*args, **kwargs)
        # A handle that the rule received is not a new object, so it must not be returned.
        known = [one for one in arguments.operands if any(one is leaf for leaf in _handles(result))]
        if known:
            raise UnsupportedOp(f"the rule of {name} returns {known[0]!r}: omit it")
        if shapes != [None if one is None else one.shape for one in operands]:
            raise UnsupportedOp(f"the rule of {name} changes the shape of an argument")
        result_spec = describe(result, operands, versions, is_rule=True)
    _check_constants(name, result_spec)
    return result_spec


def _check_constants(name: str, result_spec: ResultSpec) -> None:
    """Reject values that the processes could not compare with the results of the function."""
    is_reported = bool(result_spec.mutated) or any(
        isinstance(part, (TensorPart, ObjectPart)) for part in result_spec.parts
    )
    for _, value in result_spec.constants:
        if value is None or (is_reported and type(value) in (*ATOMS, float)):
            continue
        raise UnsupportedOp(
            f"the rule of {name} returns {value!r}, but a rule must return tensors: get values with"
            f" {name}.call(...), or return them as tensors"
        )


def _handles(result: Any) -> list[Any]:
    return [one for one in pytree.tree_leaves(result) if isinstance(one, OpaqueRef)]
