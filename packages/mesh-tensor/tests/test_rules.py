"""A rule describes the results of a function; the values always come from the function."""

from typing import Any

import pytest
import torch

import mesh_tensor as mt
from mesh_core import Actor, endpoint
from mesh_tensor import OpaqueRef, remote

SIZES = {"dp": 2}


@torch.library.custom_op("mesh_rules::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x


@torch.library.custom_op("mesh_rules::tail", mutates_args=())
def tail(x: torch.Tensor) -> torch.Tensor:
    return x[1:] + 1


@tail.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x[1:]


@torch.library.custom_op("mesh_rules::total", mutates_args=())
def total(x: torch.Tensor) -> float:
    return float(x.sum())


@total.register_fake
def _(x: torch.Tensor) -> float:
    return 0.0


class Scaler(Actor):
    @endpoint(propagate=lambda x: x)
    def doubled(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @endpoint(propagate=lambda x: x)
    def fails(self, x: torch.Tensor) -> torch.Tensor:
        raise LookupError("no scale")

    @endpoint(propagate=lambda x: x.add_(0))
    def fails_to_write(self, x: torch.Tensor) -> torch.Tensor:
        raise LookupError("no scale")


@pytest.fixture(scope="module")
def scalers(procs: Any) -> Any:
    return procs.spawn("scalers", Scaler)


class TestValues:
    def test_a_rule_that_returns_its_operand_describes_only_the_shape(self, mesh: Any) -> None:
        double = remote(lambda x: 2 * x, propagate=lambda x: x)
        for _ in range(2):
            x = torch.ones(2)
            assert mt.inspect(double(x)).tolist() == [2, 2]
            assert mt.inspect(x).tolist() == [1, 1]

    def test_a_rule_that_returns_a_view_describes_only_the_shape(self, mesh: Any) -> None:
        found = remote(lambda x: 2 * x[1:], propagate=lambda x: x[1:])(torch.arange(3.0))
        assert mt.inspect(found).tolist() == [2, 4]
        assert mt.inspect(found.as_strided((1,), (1,), 1)).tolist() == [4]

    def test_a_rule_that_returns_one_tensor_twice_describes_two(self, mesh: Any) -> None:
        one, two = remote(lambda x: (x + 1, x + 2), propagate=lambda x: (x, x))(torch.zeros(1))
        assert (mt.inspect(one).item(), mt.inspect(two).item()) == (1, 2)

    def test_a_rule_that_returns_an_expanded_tensor_describes_a_dense_one(self, mesh: Any) -> None:
        grow = remote(lambda x: torch.arange(3.0) + x, propagate=lambda x: x.expand(3))
        assert mt.inspect(grow(torch.ones(1)).add_(1)).tolist() == [2, 3, 4]

    def test_results_described_by_a_rule_have_their_own_memory(self, mesh: Any) -> None:
        same = remote(lambda x: (x, x), propagate=lambda x: (x, x))
        x = torch.zeros(1)
        one, two = same(x)
        one.add_(1)
        assert [mt.inspect(t).item() for t in (x, one, two)] == [0, 1, 0]

    def test_an_actor_endpoint_returns_its_own_values(self, mesh: Any, scalers: Any) -> None:
        assert mt.inspect(scalers.doubled.rref(torch.ones(2))).tolist() == [2, 2]

    def test_an_opaque_object_returns_its_own_values(self, mesh: Any) -> None:
        module = mt.OpaqueObject(torch.nn.Softplus, beta=2.0)
        x = torch.zeros(2)
        expected = torch.nn.functional.softplus(torch.zeros(2), beta=2.0)
        found = module.call_method("forward", lambda x: x, x)
        assert mt.inspect(torch.stack([found, expected]).std(0)).tolist() == [0, 0]

    def test_a_trace_replays_the_function_and_not_its_rule(self, mesh: Any) -> None:
        double = remote(lambda x: 2 * x, propagate=lambda x: x)

        @mt.trace
        def step(x: torch.Tensor) -> torch.Tensor:
            return double(x) + 1

        for value in (1.0, 2.0, 3.0):
            assert mt.inspect(step(torch.full((1,), value))).item() == 2 * value + 1

    def test_gradients_use_the_values_of_the_function_and_not_of_its_rule(self, mesh: Any) -> None:
        triple = remote(lambda x: 3 * x, propagate=lambda x: x)
        weight = torch.ones(2, requires_grad=True)
        (weight * triple(torch.ones(2))).sum().backward()
        assert mt.inspect(weight.grad).tolist() == [3, 3]

    def test_a_cached_call_that_returned_its_operand_may_return_something_else(
        self, mesh: Any
    ) -> None:
        size = remote(lambda x: x if float(x) > 0 else -x)
        assert [mt.inspect(size(torch.tensor([one]))).item() for one in (2.0, -3.0)] == [2, 3]

    def test_non_tensor_results_are_computed_at_each_call(self, mesh: Any) -> None:
        summed = remote(lambda x: {"x": x + 1, "sum": float(x.sum())})
        assert [summed(torch.full((2,), one))["sum"] for one in (1.0, 2.0)] == [2, 4]


class TestFailures:
    def test_a_failure_is_raised_when_the_rule_returns_the_operand(self, mesh: Any) -> None:
        def fails(x: torch.Tensor) -> torch.Tensor:
            raise ArithmeticError("no result")

        x = torch.ones(2)
        with pytest.raises(mt.OpFailed, match="no result"):
            mt.inspect(remote(fails, propagate=lambda x: x)(x))
        assert mt.inspect(x).tolist() == [1, 1]

    def test_a_later_failure_of_a_cached_call_is_raised(self, mesh: Any) -> None:
        def positive(x: torch.Tensor) -> torch.Tensor:
            if float(x) < 0:
                raise ArithmeticError("below zero")
            return x

        same = remote(positive)
        assert mt.inspect(same(torch.ones(1))).item() == 1
        with pytest.raises(mt.OpFailed, match="below zero"):
            mt.inspect(same(-torch.ones(1)))

    def test_a_failure_of_an_actor_is_raised(self, mesh: Any, scalers: Any) -> None:
        with pytest.raises(mt.OpFailed, match="no scale"):
            mt.inspect(scalers.fails.rref(torch.ones(2)))

    def test_the_in_place_argument_of_a_failed_endpoint_is_lost(
        self, mesh: Any, scalers: Any
    ) -> None:
        x = torch.ones(2)
        with torch.no_grad(), pytest.raises(mt.OpFailed, match="no scale"):
            mt.inspect(scalers.fails_to_write.rref(x))


class TestPromises:
    def test_an_argument_that_is_written_to_is_the_result_itself(self, mesh: Any) -> None:
        bump = remote(lambda x: x.add_(1), propagate=lambda x: x.add_(0))
        x = torch.zeros(1)
        assert bump(x) is x
        assert mt.inspect(x).item() == 1

    def test_returning_a_tensor_other_than_the_written_argument_is_a_failure(
        self, mesh: Any
    ) -> None:
        wrong = remote(lambda x: 2 * x, propagate=lambda x: x.add_(0))
        with pytest.raises(mt.OpFailed, match="empty_like"):
            mt.inspect(wrong(torch.ones(1)))

    def test_writing_to_an_argument_that_the_rule_does_not_write_is_a_failure(
        self, mesh: Any
    ) -> None:
        wrong = remote(lambda x: x.add_(1), propagate=torch.empty_like)
        with pytest.raises(mt.OpFailed, match="writes to tensor 0"):
            mt.inspect(wrong(torch.ones(1)))

    def test_a_first_call_without_writes_forbids_writes_in_later_calls(self, mesh: Any) -> None:
        clamp = remote(lambda x: (x.zero_() if float(x) < 0 else x) + 1)
        assert mt.inspect(clamp(torch.ones(1))).item() == 2
        with pytest.raises(mt.OpFailed, match="writes to tensor 0"):
            mt.inspect(clamp(-torch.ones(1)))

    def test_writing_through_another_view_of_the_written_tensor_is_allowed(self, mesh: Any) -> None:
        x = torch.zeros(2)
        write = remote(lambda x, bits: bits.fill_(0), propagate=lambda x, bits: bits.fill_(0))
        write(x, x.view(torch.int32))
        assert mt.inspect(x).tolist() == [0, 0]

    def test_a_tensor_inside_an_opaque_object_may_be_written_to(self, mesh: Any) -> None:
        held = remote(lambda: OpaqueRef(torch.zeros(1)), propagate=lambda: OpaqueRef())()
        count = remote(lambda ref: ref.value.add_(1).clone(), propagate=lambda _: torch.empty(1))
        count(held)
        assert mt.inspect(count(held)).item() == 2

    def test_a_number_from_the_rule_must_equal_that_of_the_function(self, mesh: Any) -> None:
        def rule(x: torch.Tensor) -> Any:
            return torch.empty_like(x), x.shape[0]

        right = remote(lambda x: (x + 1, len(x)), propagate=rule)
        found, size = right(torch.ones(2))
        assert (mt.inspect(found).tolist(), size) == ([2, 2], 2)
        wrong = remote(lambda x: (x + 1, 7), propagate=rule)
        with pytest.raises(mt.OpFailed, match="returned 7 instead of 2"):
            mt.inspect(wrong(torch.ones(2))[0])

    def test_a_rule_that_returns_only_a_value_is_refused(self, mesh: Any) -> None:
        with pytest.raises(mt.UnsupportedOp, match=r"call\(\.\.\.\)"):
            remote(lambda x: float(x.sum()), propagate=lambda x: 0.0)(torch.ones(2))


class TestCustomOperations:
    def test_a_fake_that_returns_its_operand_describes_only_the_shape(self, mesh: Any) -> None:
        assert mt.inspect(doubled(torch.ones(2))).tolist() == [2, 2]

    def test_a_fake_that_returns_a_view_describes_only_the_shape(self, mesh: Any) -> None:
        found = tail(torch.arange(3.0))
        assert mt.inspect(found).tolist() == [2, 3]
        assert mt.inspect(found.as_strided((1,), (1,), 1)).tolist() == [3]

    def test_a_number_is_computed_by_the_processes(self, mesh: Any) -> None:
        assert [total(torch.full((2,), one)) for one in (1.0, 2.0)] == [2, 4]
