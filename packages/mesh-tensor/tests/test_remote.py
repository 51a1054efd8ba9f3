"""Remote functions: their results, their identity, and their failures."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import mesh_tensor as mt
from mesh_tensor import remote

SIZES = {"dp": 2}


CALLS: list[str] = []


@remote
def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by


def _like(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    CALLS.append("like")
    return torch.empty_like(x)


@remote(propagate=_like)
def plus(x: torch.Tensor, n: float) -> torch.Tensor:
    return x + n


@remote
def split(tree: dict[str, torch.Tensor]) -> dict[str, Any]:
    x = tree["x"]
    return {"halves": [x[:1], x[1:]], "same": x, "name": "halves", "fresh": x.clone()}


@remote(propagate=lambda x: x.add_(0))
def bump(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


@remote
def explode(x: torch.Tensor) -> torch.Tensor:
    raise KeyError("no such weight")


@remote(propagate="inspect")
def note(x: torch.Tensor) -> None:
    CALLS.append("noted")


@remote
def how_many() -> int:
    return len(CALLS)


class TestTensors:
    def test_first_and_cached_calls_return_correct_results(self, mesh: Any) -> None:
        x = torch.ones(2, 3)
        first, second = scaled(x), scaled(x + 1)
        assert type(first) is type(second) is mt.Tensor
        assert mt.inspect(first).tolist() == [[2.0] * 3] * 2
        assert mt.inspect(second).tolist() == [[4.0] * 3] * 2

    def test_calls_with_different_constants_or_keywords_are_distinguished(self, mesh: Any) -> None:
        x = torch.ones(2)
        assert mt.inspect(scaled(x, by=3.0)).tolist() == [3, 3]
        assert mt.inspect(scaled(x, 5.0)).tolist() == [5, 5]
        assert mt.inspect(scaled(x, by=3.0)).tolist() == [3, 3]

    def test_each_process_runs_the_function_on_its_own_tensor(self, mesh: Any) -> None:
        ranks = mesh.rank("dp") + torch.ones(1)
        assert [mt.inspect(scaled(ranks), dp=dp).tolist() for dp in range(2)] == [[2], [4]]

    def test_a_propagate_rule_is_evaluated_once_per_call_signature(self, mesh: Any) -> None:
        CALLS.clear()
        x = torch.ones(4)
        assert [mt.inspect(plus(x, 1.0))[0].item(), mt.inspect(plus(x, 1.0))[0].item()] == [2, 2]
        assert CALLS == ["like"]

    def test_results_may_be_trees_constants_views_and_arguments(self, mesh: Any) -> None:
        for _ in range(2):
            x = torch.arange(3.0)
            found = split({"x": x})
            assert found["name"] == "halves"
            with torch.no_grad():
                x.add_(10)
            assert mt.inspect(found["same"]).tolist() == [10, 11, 12]
            assert mt.inspect(found["halves"][1]).tolist() == [11, 12]
            assert mt.inspect(found["fresh"]).tolist() == [0, 1, 2]

    def test_a_function_may_write_to_an_argument(self, mesh: Any) -> None:
        x = torch.zeros(2)
        view = x[:1]
        assert bump(x) is x
        assert mt.inspect(view).item() == 1

    def test_a_result_with_a_shape_other_than_promised_fails(self, mesh: Any) -> None:
        wrong = remote(lambda x: x[:1].clone(), propagate=lambda x: torch.empty_like(x))
        with pytest.raises(mt.OpFailed, match="instead of"):
            mt.inspect(wrong(torch.ones(3)))

    def test_a_path_names_a_function(self, mesh: Any) -> None:
        total = remote("torch.sum")
        assert mt.inspect(total(torch.ones(5))).item() == 5

    def test_gradients_are_not_lost_silently(self, mesh: Any) -> None:
        x = torch.ones(2, requires_grad=True)
        with pytest.raises(mt.NoGradient, match="scaled"):
            scaled(x)
        with torch.no_grad():
            assert not scaled(x).requires_grad

    def test_results_that_differ_between_processes_are_an_error(self, mesh: Any) -> None:
        differs = remote(lambda r: torch.ones(int(r) + 1))
        with pytest.raises(mt.RanksDisagree, match="rank 1"):
            differs(mesh.rank("dp"))

    def test_tensor_arguments_determine_the_mesh_of_the_call(self, mesh: Any) -> None:
        x = torch.ones(2)
        with mt.no_mesh.activate():
            assert mt.inspect(scaled(x)).tolist() == [2, 2]
            with pytest.raises(mt.TensorError, match="no mesh is active"):
                how_many()
        with mesh.slice(dp=1).activate():
            part = torch.ones(2)
        with pytest.raises(mt.WrongMesh):
            scaled(x, part)


class TestValues:
    def test_a_remote_function_has_the_methods_of_an_endpoint(self, mesh: Any) -> None:
        ranks = mesh.rank("dp")
        value = remote(lambda r: int(r) * 10)
        assert list(value.call(ranks).get().values()) == [0, 10]
        assert value.call(ranks).get().slice(dp=1).item() == 10
        assert value.choose(ranks).get() in (0, 10)
        assert sorted(one.get() for one in value.stream(ranks)) == [0, 10]
        assert value.call_on({"dp": 1}, ranks).get() == 10
        assert mt.call_on_shard_and_fetch(value, ranks, shard={"dp": 1}).get() == 10
        with pytest.raises(ValueError, match="one"):
            value.call_one(ranks)
        with mesh.slice(dp=1).activate():
            assert how_many.call_one().get() >= 0

    def test_values_are_computed_in_program_order(self, mesh: Any) -> None:
        x = torch.zeros(1)
        read = remote(lambda x: x.item())
        for step in range(20):
            assert list(read.call(x).get().values()) == [step, step]
            x.add_(1)

    def test_tensors_are_fetched_as_local_tensors(self, mesh: Any) -> None:
        found = scaled.call(torch.ones(2)).get()
        assert [type(one) for one in found.values()] == [torch.Tensor, torch.Tensor]

    def test_a_broadcast_runs_in_program_order(self, mesh: Any) -> None:
        before = list(how_many.call().get().values())
        note.broadcast(torch.ones(1))
        assert note(torch.ones(1)) is None
        assert list(how_many.call().get().values()) == [one + 2 for one in before]

    def test_an_exception_in_the_function_is_raised_in_the_program(self, mesh: Any) -> None:
        with pytest.raises(KeyError, match="no such weight"):
            explode.call(torch.ones(1)).get()


class TestFailures:
    def test_a_failure_propagates_with_the_line_of_the_call(self, mesh: Any) -> None:
        fails = remote(_fails_on_one, propagate=lambda x, r: torch.empty_like(x))
        x, other = torch.ones(2), torch.ones(2)
        lost = fails(x, mesh.rank("dp"))
        later = scaled(other)
        dependant = lost + 1
        with pytest.raises(mt.OpFailed, match="only on one") as caught:
            mt.inspect(dependant)
        assert caught.value.rank == 1
        assert "lost = fails(x, mesh.rank" in caught.value.stack
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert mt.inspect(later).tolist() == [2, 2]

    def test_a_lost_argument_is_detected_before_the_function_runs(self, mesh: Any) -> None:
        fails = remote(_fails_on_one, propagate=lambda x, r: torch.empty_like(x))
        lost = fails(torch.ones(2), mesh.rank("dp"))
        with pytest.raises(mt.OpFailed, match="only on one"):
            scaled.call(lost).get()
        with pytest.raises(mt.OpFailed, match="only on one"):
            scaled(torch.ones(7) * lost.sum())

    def test_a_first_call_that_fails_raises_immediately(self, mesh: Any) -> None:
        with pytest.raises(mt.OpFailed, match="no such weight") as caught:
            explode(torch.ones(1))
        assert isinstance(caught.value.__cause__, KeyError)

    def test_errors_that_cannot_be_pickled_are_reported_as_text(self, mesh: Any) -> None:
        with pytest.raises(mt.OpFailed, match="Odd"):
            mt.inspect(remote(_raises_odd, propagate=torch.empty_like)(torch.ones(1)))
        assert mt.inspect(torch.ones(1)).item() == 1


class TestGroups:
    def test_a_mesh_argument_arrives_as_a_torch_device_mesh(self, mesh: Any) -> None:
        found = remote(_look_at).call(mesh).get()
        assert list(found.values()) == [(("dp",), 2, 0), (("dp",), 2, 1)]

    def test_a_function_can_use_a_process_group_for_collectives(self, mesh: Any) -> None:
        total = remote(_all_reduced)(mesh.rank("dp") + torch.ones(1), mesh.process_group("dp"))
        assert mt.inspect(total).item() == 3


def _fails_on_one(x: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    if rank == 1:
        raise ZeroDivisionError("only on one")
    return x


class Odd(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("Odd one")


def _raises_odd(x: torch.Tensor) -> torch.Tensor:
    raise Odd(1, 2)


def _look_at(mesh: Any) -> Any:
    return mesh.mesh_dim_names, mesh.size(), mesh.get_local_rank("dp")


def _all_reduced(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x
