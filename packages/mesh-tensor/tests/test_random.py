"""Random numbers of the processes."""

from typing import Any

import pytest
import torch

import mesh_tensor as mt


def drawn(mesh: Any) -> list[list[float]]:
    x = torch.rand(2)
    return [mt.inspect(x, dp=dp, tp=tp).tolist() for dp in range(2) for tp in range(2)]


def test_each_process_draws_its_own_numbers_again(mesh: Any) -> None:
    mt.random.manual_seed(5)
    first = drawn(mesh)
    assert len({tuple(one) for one in first}) == 4
    mt.random.manual_seed(5)
    assert drawn(mesh) == first


def test_processes_may_draw_the_same_as_the_program(mesh: Any) -> None:
    mt.random.manual_seed(5, per_rank=False)
    with mt.no_mesh.activate():
        torch.manual_seed(5)
        expected = torch.rand(2).tolist()
    assert drawn(mesh) == [expected] * 4


def test_they_may_differ_along_one_dimension(mesh: Any) -> None:
    mt.random.manual_seed(5, per_rank="dp")
    first, second, third, fourth = drawn(mesh)
    assert first == second != third == fourth


def test_a_state_is_brought_back(mesh: Any) -> None:
    for _ in range(2):
        state = mt.random.get_state()
        first = drawn(mesh)
        assert drawn(mesh) != first
        mt.random.set_state(state)
        assert drawn(mesh) == first


def test_without_a_mesh_it_is_an_error() -> None:
    with pytest.raises(mt.TensorError, match="no mesh is active"):
        mt.random.manual_seed(1)
