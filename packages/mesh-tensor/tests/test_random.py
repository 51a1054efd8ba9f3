"""Random numbers of the processes."""

from typing import Any

import pytest
import torch

import mesh_tensor as mt


def drawn(mesh: Any) -> list[list[float]]:
    x = torch.rand(2)
    return [mt.inspect(x, dp=dp, tp=tp).tolist() for dp in range(2) for tp in range(2)]


def test_a_seed_reproduces_distinct_numbers_on_each_process(mesh: Any) -> None:
    mt.random.manual_seed(5)
    first = drawn(mesh)
    assert len({tuple(one) for one in first}) == 4
    mt.random.manual_seed(5)
    assert drawn(mesh) == first


def test_processes_can_draw_the_same_numbers_as_the_program(mesh: Any) -> None:
    mt.random.manual_seed(5, per_rank=False)
    with mt.no_mesh.activate():
        torch.manual_seed(5)
        expected = torch.rand(2).tolist()
    assert drawn(mesh) == [expected] * 4


def test_random_numbers_can_differ_along_one_dimension(mesh: Any) -> None:
    mt.random.manual_seed(5, per_rank="dp")
    first, second, third, fourth = drawn(mesh)
    assert first == second != third == fourth


def test_a_saved_random_state_is_restored(mesh: Any) -> None:
    for _ in range(2):
        state = mt.random.get_state()
        first = drawn(mesh)
        assert drawn(mesh) != first
        mt.random.set_state(state)
        assert drawn(mesh) == first


def test_seeding_without_a_mesh_is_an_error() -> None:
    with pytest.raises(mt.TensorError, match="no mesh is active"):
        mt.random.manual_seed(1)
