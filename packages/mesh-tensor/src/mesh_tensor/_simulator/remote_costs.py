"""The cost of remote functions in a simulation, which does not run them."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._dispatch.fake_propagation import without_values
from mesh_tensor._instructions.compiled_op import Operand
from mesh_tensor._remote.call_protocol import ObjectArg
from mesh_tensor._remote.opaque_ref import OpaqueRef
from mesh_tensor._simulator.cost_model import Work
from mesh_tensor._simulator.op_work import device_of, footprint

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._instructions.compiled_op import CompiledOp
    from mesh_tensor._remote.function import RemoteFunction
    from mesh_tensor._simulator.cost_model import CostModel
    from mesh_tensor._simulator.world import SimulatedValue
    from mesh_tensor._tensor.meta import Kind

__all__ = ["RemoteCosts"]

#: The maximum number of cached durations.
_KNOWN_MAX = 4096


class RemoteCosts:
    """The rules of a program for the durations of its remote functions.

    Args:
        costs: The rule of each function. It is called with the function's arguments, with tensors
            without values, and returns seconds.
        model: The cost model for functions without a rule: they take the time to read and write
            their operands and results.
    """

    def __init__(
        self, costs: Mapping[RemoteFunction[..., Any], Callable[..., float]], model: CostModel
    ) -> None:
        self._rules = {one.__remote_target__: rule for one, rule in costs.items()}
        self._model = model
        self._known: dict[Hashable, float] = {}
        self.engine: Engine | None = None

    def seconds(
        self,
        compiled_op: CompiledOp,
        blob: bytes,
        operands: Sequence[SimulatedValue | None],
        made: Sequence[Kind],
    ) -> float:
        """Return the duration of a call."""
        kinds = tuple(None if one is None else one.kind for one in operands)
        key = compiled_op.detail.function, blob, kinds
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            found = self._known[key] = self._worked_out(compiled_op, blob, kinds, made)
        return found

    def _worked_out(
        self,
        compiled_op: CompiledOp,
        blob: bytes,
        kinds: Sequence[Kind | None],
        made: Sequence[Kind],
    ) -> float:
        rule = self._rule_of(compiled_op.detail.function)
        if rule is not None:
            return _apply_rule(rule, blob, kinds)
        tensors = [*(kind for kind in kinds if kind is not None), *made]
        if not tensors:
            return 0.0
        written = [kind for place in compiled_op.mutated if (kind := kinds[place]) is not None]
        nbytes = sum(map(footprint, [*tensors, *written]))
        return self._model.op_s(
            Work(compiled_op.name, device_of(tensors), tensors[0].dtype, 0, nbytes, tuple(tensors))
        )

    def _rule_of(self, function: int) -> Callable[..., float] | None:
        assert self.engine is not None
        numbers = self.engine.remote.functions
        return next((self._rules[one] for one in self._rules if numbers.get(one) == function), None)


def _apply_rule(rule: Callable[..., float], blob: bytes, kinds: Sequence[Kind | None]) -> float:
    with without_values():

        def part(leaf: Any) -> Any:
            if type(leaf) is ObjectArg:
                return OpaqueRef()
            kind = kinds[leaf.index] if type(leaf) is Operand else None
            if kind is None:
                return leaf
            return torch.empty_strided(
                kind.shape, kind.strides, dtype=kind.dtype, device=kind.device
            )

        args, kwargs = pytree.tree_map(part, pickle.loads(blob))
        return float(rule(*args, **kwargs))
