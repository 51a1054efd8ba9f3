"""Reductions of many tensors at once."""

from typing import Any

import pytest
import torch

import mesh_tensor as mt


def test_a_tree_reduction_equals_separate_reductions(mesh: Any) -> None:
    rank = mesh.rank(("dp", "tp"))
    tree = {
        "x": torch.ones(2, 3) * rank,
        "more": [torch.full((4,), 2, dtype=torch.int64) + rank, torch.ones(()) - rank],
        "name": "tree",
    }
    for dims, reduction in ((None, "sum"), ("dp", "max"), ("tp", "sum")):
        combined = mt.reduce(tree, dims, reduction)
        assert combined["name"] == "tree"
        pairs = [(combined["x"], tree["x"]), *zip(combined["more"], tree["more"], strict=True)]
        for one, operand in pairs:
            alone = operand.reduce(dims, reduction)
            assert one.dtype == operand.dtype
            for dp in range(2):
                here, there = mt.inspect([one, alone], dp=dp, tp=1)
                assert torch.equal(here, there)


def test_in_place_reductions_work_with_views_and_empty_lists(mesh: Any) -> None:
    whole = torch.zeros(3, 4)
    parts = [whole[0], whole[:, 1:2].t(), torch.ones(2), torch.ones(0)]
    whole.add_(1)
    assert mt.reduce_(parts[2:], "dp")[0] is parts[2]
    assert mt.inspect(parts[2]).tolist() == [2, 2]
    mt.reduce_([parts[1]], "dp")
    assert mt.inspect(whole)[:, 1].tolist() == [2, 2, 2]
    assert mt.reduce_([], "dp") == []


def test_few_collectives_are_issued(mesh: Any) -> None:
    many = [torch.ones(5) for _ in range(50)]
    engine, names = mesh._engine, []
    issue = engine.stream.issue

    def noted(instructions: Any, *more: Any) -> None:
        names.append(engine.compiled_ops[instructions[0]].kind)
        issue(instructions, *more)

    engine.stream.issue = noted
    try:
        mt.reduce_(many, "dp", "avg")
    finally:
        del engine.stream.issue
    assert names.count("reduce") == 1


def test_gradients_flow_through_a_tree_reduction(mesh: Any) -> None:
    weights = [torch.full((2,), 2.0, requires_grad=True), torch.ones(3, requires_grad=True)]
    loss = sum(one.sum() for one in mt.reduce([one * 3 for one in weights], "dp"))
    loss.backward()  # type: ignore[union-attr]
    assert [mt.inspect(one.grad).tolist() for one in weights] == [[6, 6], [6, 6, 6]]
    with pytest.raises(ValueError, match="in place"):
        mt.reduce_(weights, "dp")


def test_unsupported_tree_reductions_are_refused(mesh: Any) -> None:
    with pytest.raises(ValueError, match="not trees"):
        mt.reduce([torch.ones(2)], "dp", "stack")
    with mt.no_mesh.activate():
        here = torch.ones(1)
    with pytest.raises(mt.TensorError, match="local tensor"):
        mt.reduce([here], "dp")
