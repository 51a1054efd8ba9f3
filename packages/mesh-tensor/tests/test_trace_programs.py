"""Random functions: a replay returns and writes the same values as a call without a trace."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_settings import HYPOTHESIS_SETTINGS, both

import mesh_tensor as mt

SIZES = {"dp": 2}


#: The operations with the number of their operands; some write to the first operand.
OPS: list[tuple[int, Callable[..., Any]]] = [
    (2, lambda x, y: x + y),
    (2, lambda x, y: x * y - x),
    (1, lambda x: x.relu() + 0.5),
    (1, lambda x: x.t()),
    (1, lambda x: x[0]),
    (1, lambda x: x.detach()),
    (1, lambda x: x.expand(2, 2)),
    (1, lambda x: x.reduce("dp")),
    (1, lambda x: x.add_(1)),
    (2, lambda x, y: x.copy_(y * 0.5)),
    (1, lambda x: x.reduce_("dp", "max") if x.is_contiguous() else x),
    (1, lambda x: torch.stack([x, x]).sum(0)),
    (2, lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]).mean()),
]
_NUMBERS = st.integers(0, 1 << 16)


@given(st.lists(st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), min_size=1, max_size=12), _NUMBERS)
@settings(HYPOTHESIS_SETTINGS, max_examples=40)
def test_traced_random_functions_match_untraced_ones(
    mesh: Any, choices: list[tuple[int, int, int]], kept: int
) -> None:
    def run(wrap: Callable[[Any], Any]) -> Any:
        captured = torch.full((2, 2), 3.0) * (mesh.rank("dp") + 1)

        def function(x: torch.Tensor, y: torch.Tensor) -> Any:
            values = [x, y, captured]
            for op, first, second in choices:
                count, do = OPS[op % len(OPS)]
                one, two = values[first % len(values)], values[second % len(values)]
                if count == 2 and (one.dim() < two.dim() or one.dim() == 0):
                    one, two = two, one
                if (op % len(OPS) == 6 and one.dim() > 2) or (op % len(OPS) == 4 and not one.dim()):
                    continue
                if _is_expanded(one) and op % len(OPS) in (8, 9, 10):
                    continue
                values.append(do(one, two) if count == 2 else do(one))
            return [values[kept % len(values)], values[-1]]

        called, seen = wrap(function), []
        for n in range(3):
            x, y = torch.full((2, 2), 0.25 * n), torch.ones(2, 2) * (mesh.rank("dp") - n)
            result = called(x, y)
            seen.append(both([*result, x, y, captured]))
            result[-1].add_(0 if _is_expanded(result[-1]) else 1)
            seen.append(both([*result, x, y, captured]))
        return torch.utils._pytree.tree_leaves(seen)

    for one, two in zip(run(lambda function: function), run(mt.trace), strict=True):
        assert one.shape == two.shape
        assert one.stride() == two.stride()
        assert torch.equal(one, two)


def _is_expanded(x: torch.Tensor) -> bool:
    return any(not stride and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True))
