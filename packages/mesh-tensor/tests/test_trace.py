"""Traces: a replay has the effects of the function."""

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from random_settings import both

import mesh_tensor as mt
from mesh_core import Actor, ProcMesh, endpoint
from mesh_tensor import OpFailed, TensorError, TraceError, trace

SIZES = {"dp": 2}

RATE = 2.0


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    with mt.no_mesh.activate():
        layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)]
        made = torch.nn.Sequential(*layers)
    return mt.put(made)


class TestReplays:
    def test_a_trace_is_recorded_once_per_kind_of_arguments(self, mesh: Any) -> None:
        @trace
        def function(x: torch.Tensor, by: float, *, y: torch.Tensor) -> dict[str, Any]:
            return {"sum": x * by + y, "name": "sum", "x": x}

        for count in range(4):
            x, y = torch.full((2,), float(count)), torch.ones(2) * mesh.rank("dp")
            result = function(x, 3.0, y=y)
            assert result["x"] is x
            assert result["name"] == "sum"
            assert [one.tolist() for one in both(result["sum"])] == [
                [3.0 * count] * 2,
                [3.0 * count + 1] * 2,
            ]
        function(torch.ones(2), 4.0, y=torch.ones(2))
        function(torch.ones(3), 3.0, y=torch.ones(3))
        assert (function.recorded, function.replayed) == (3, 3)

    def test_local_tensor_arguments_are_sent_with_a_replay(self, mesh: Any) -> None:
        double = trace(lambda x: x * 2)
        with mt.no_mesh.activate():
            given = [torch.full((2,), float(count)) for count in range(3)]
        assert [mt.inspect(double(one))[0].item() for one in given] == [0, 2, 4]
        assert double.replayed == 2

    def test_aliased_arguments_are_recorded_separately(self, mesh: Any) -> None:
        @trace
        def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x + y

        for _ in range(2):
            x, y = torch.zeros(2), torch.zeros(2)
            assert mt.inspect(write(x, y))[0] == 1
            assert mt.inspect(write(x, x))[0] == 4
            assert mt.inspect(write(x, x[:]))[0] == 6
        assert write.recorded == write.replayed == 3

    def test_a_replay_repeats_in_place_writes(self, mesh: Any) -> None:
        total = torch.zeros(3)
        view = total[1:]

        @trace
        def add(x: torch.Tensor) -> None:
            x.mul_(2)
            total[0] += 1
            view.add_(x)

        x = torch.ones(2)
        for _ in range(3):
            version = x._version
            add(x)
            assert x._version > version
        assert add.replayed == 2
        assert mt.inspect(x).tolist() == [8, 8]
        assert mt.inspect(total).tolist() == [3, 14, 14]

    def test_a_result_may_be_a_view(self, mesh: Any) -> None:
        @trace
        def rows(x: torch.Tensor) -> Any:
            made = x * 2
            return x[0], made, made[1]

        for _ in range(3):
            x = torch.zeros(2, 2)
            row, made, other = rows(x)
            row.add_(1)
            other.add_(1)
            assert mt.inspect(x).tolist() == [[1, 1], [0, 0]]
            assert mt.inspect(made).tolist() == [[0, 0], [1, 1]]

    def test_collectives_and_moves_are_replayed(self, mesh: Any) -> None:
        @trace
        def function(x: torch.Tensor) -> Any:
            summed = x.reduce("dp")
            first = mt.to_mesh(summed.reduce("dp", "stack"), mesh)
            return summed, first, mesh.rank("dp") + x

        for count in range(3):
            x = torch.full((2,), float(count)) + mesh.rank("dp")
            summed, first, ranks = function(x)
            assert [one.tolist() for one in both(summed)] == [[2 * count + 1] * 2] * 2
            assert [one.shape for one in both(first)] == [(2, 2)] * 2
            assert [one[0].item() for one in both(ranks)] == [count, count + 2]
        assert function.replayed == 2

    def test_operations_on_slices_of_the_mesh_are_replayed(self, mesh: Any) -> None:
        halves = [mesh.slice(dp=dp) for dp in range(2)]

        @trace
        def pipeline(x: torch.Tensor) -> torch.Tensor:
            return mt.to_mesh(x * 2, halves[1]) + 1

        for count in range(3):
            with halves[0].activate():
                x = torch.full((2,), float(count))
            assert mt.inspect(pipeline(x))[0] == 2 * count + 1
        assert pipeline.replayed == 2

    def test_each_replay_draws_new_random_numbers(self, mesh: Any) -> None:
        draw = trace(lambda x: torch.nn.functional.dropout(x, 0.5))
        ones = torch.ones(64)
        drawn = [tuple(mt.inspect(draw(ones)).tolist()) for _ in range(4)]
        assert draw.replayed == 3
        assert len(set(drawn)) == 4

    def test_constants_created_in_the_function_are_replayed(self, mesh: Any) -> None:
        @trace
        def function(x: torch.Tensor) -> torch.Tensor:
            return x + torch.tensor([1.0, float("inf")]) * torch.tensor(2.0)

        assert [mt.inspect(function(torch.zeros(2))).tolist() for _ in range(2)] == [
            [2.0, float("inf")]
        ] * 2

    def test_a_nested_trace_is_part_of_the_outer_trace(self, mesh: Any) -> None:
        inner = trace(lambda x: x + 1)
        outer = trace(lambda x: inner(x) * 2)
        assert [mt.inspect(outer(torch.ones(1))).item() for _ in range(3)] == [4, 4, 4]
        assert (inner.recorded, outer.recorded, outer.replayed) == (0, 1, 2)

    def test_methods_have_a_trace_for_each_object(self, mesh: Any) -> None:
        class Scale:
            def __init__(self, by: float) -> None:
                self.by = by

            @trace
            def scaled(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.by

        two, three = Scale(2), Scale(3)
        for _ in range(3):
            assert mt.inspect(two.scaled(torch.ones(1))).item() == 2
            assert mt.inspect(three.scaled(torch.ones(1))).item() == 3
        two.by = 5
        assert mt.inspect(two.scaled(torch.ones(1))).item() == 5
        assert two.scaled.recorded == 2

    def test_remote_functions_are_replayed(self, mesh: Any) -> None:
        @mt.remote
        def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
            return x + by

        function = trace(lambda x: shifted(x * 2, 3))
        with torch.no_grad():
            results = [mt.inspect(function(torch.full((1,), float(n)))).item() for n in range(4)]
        assert results == [3, 5, 7, 9]
        # The first call determines the results of the remote function.
        assert (function.recorded, function.replayed) == (2, 2)

    def test_replays_leave_no_values_behind(self, mesh: Any) -> None:
        engine = mesh._engine
        function = trace(lambda x: (x * 2 + 1).relu())

        def held() -> Any:
            gc.collect()
            engine.stream.flush()
            return [one["values"] for one in engine._workers.count.call().get().values()]

        x = torch.ones(4)
        function(x)
        before = held()
        for _ in range(20):
            function(x)
        assert held() == before


class TestTraining:
    @pytest.mark.parametrize("set_to_none", [True, False])
    @pytest.mark.parametrize("name", ["SGD", "AdamW"])
    def test_a_traced_step_is_bitwise_identical(
        self, mesh: Any, name: str, set_to_none: bool
    ) -> None:
        def train(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
            model = net()
            more: dict[str, Any] = {"momentum": 0.9} if name == "SGD" else {"fused": True}
            optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **more)

            def step(x: torch.Tensor) -> torch.Tensor:
                optimizer.zero_grad(set_to_none=set_to_none)
                loss = (model(x) - 1).pow(2).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                for one in model.parameters():
                    one.grad = one.grad.reduce("dp", "avg")  # type: ignore[union-attr,attr-defined]
                optimizer.step()
                return loss.detach()

            function = wrap(step)
            inputs = [torch.full((3, 6), 0.1 * n) * (mesh.rank("dp") + 1) for n in range(6)]
            losses = [function(one) for one in inputs]
            parameters = list(model.parameters())
            return both([losses, parameters, [one.grad for one in parameters]]), function

        plain, _ = train(lambda function: function)
        traced, function = train(trace)
        assert function.replayed >= 3
        for one, two in zip(
            torch.utils._pytree.tree_leaves(plain),
            torch.utils._pytree.tree_leaves(traced),
            strict=True,
        ):
            assert torch.equal(one, two)

    def test_gradients_accumulate_in_replays(self, mesh: Any) -> None:
        weight = torch.ones(2, requires_grad=True)

        @trace
        def backward(x: torch.Tensor) -> None:
            (weight * x).sum().backward()

        for count in range(1, 5):
            backward(torch.full((2,), 2.0))
            assert mt.inspect(weight.grad).tolist() == [2.0 * count] * 2
        assert (backward.recorded, backward.replayed) == (2, 2)
        weight.grad = None
        backward(torch.ones(2))
        assert mt.inspect(weight.grad).tolist() == [1, 1]


class TestWhatElseItDependsOn:
    def test_changed_closure_variables_and_globals_cause_a_new_recording(
        self, mesh: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        by = 2

        def scale() -> float:
            return RATE

        @trace
        def function(x: torch.Tensor) -> torch.Tensor:
            return x * by * scale()

        x = torch.ones(1)
        assert [mt.inspect(function(x)).item() for _ in range(2)] == [4, 4]
        by = 3
        assert [mt.inspect(function(x)).item() for _ in range(2)] == [6, 6]
        monkeypatch.setitem(globals(), "RATE", 5.0)
        assert [mt.inspect(function(x)).item() for _ in range(2)] == [15, 15]
        assert (function.recorded, function.replayed) == (3, 3)

    def test_changed_module_modes_and_optimizer_settings_take_effect(self, mesh: Any) -> None:
        model = torch.nn.Sequential(torch.nn.Dropout(1.0))
        weight = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)

        @trace
        def function(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            (model(x) + weight).sum().backward()
            optimizer.step()
            return model(x)

        x = torch.ones(1)
        assert [mt.inspect(function(x)).item() for _ in range(3)] == [0, 0, 0]
        model.eval()
        assert [mt.inspect(function(x)).item() for _ in range(2)] == [1, 1]
        assert mt.inspect(weight).item() == -5
        optimizer.param_groups[0]["lr"] = 10.0
        function(x)
        assert mt.inspect(weight).item() == -15

    def test_a_replaced_captured_tensor_takes_effect(self, mesh: Any) -> None:
        kept = {"x": torch.ones(1)}
        parameter = torch.nn.Parameter(torch.ones(1))
        function = trace(lambda y: (kept["x"] + parameter.detach()) * y)
        y = torch.ones(1)
        assert [mt.inspect(function(y)).item() for _ in range(2)] == [2, 2]
        kept["x"] = torch.full((1,), 5.0)
        assert mt.inspect(function(y)).item() == 6
        parameter.data = torch.full((1,), 10.0)
        assert mt.inspect(function(y)).item() == 15

    def test_a_variable_that_changes_at_each_call_causes_a_warning(self, mesh: Any) -> None:
        calls = 0

        @trace
        def function(x: torch.Tensor) -> torch.Tensor:
            return x + calls

        def call_often() -> None:
            nonlocal calls
            for calls in range(12):
                assert mt.inspect(function(torch.zeros(1))).item() == calls

        with pytest.warns(RuntimeWarning, match="calls differs at each call"):
            call_often()

    def test_a_tensor_that_outlives_the_call_causes_a_warning(self, mesh: Any) -> None:
        kept: list[torch.Tensor] = []
        keep = kept.append

        @trace
        def function(x: torch.Tensor) -> torch.Tensor:
            keep(x * 2)  # the line that keeps it
            return x + 1

        with pytest.warns(RuntimeWarning, match=r"(?s)outlives the call.*the line that keeps it"):
            assert [mt.inspect(function(torch.ones(1))).item() for _ in range(8)] == [2] * 8
        assert function.replayed == 0
        assert len(kept) == 8

    def test_check_every_detects_a_function_that_differs_from_its_trace(self, mesh: Any) -> None:
        hidden = iter([2, 2, 2, 3, 3, 3])

        @trace(check_every=3)
        def function(x: torch.Tensor) -> torch.Tensor:
            return x * next(hidden)

        x = torch.ones(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [mt.inspect(function(x)).item() for _ in range(4)] == [2, 2, 2, 2]
            next(hidden)
            with pytest.raises(TraceError, match=r"(?s)operation 0 differs.*next\(hidden\)"):
                print([function(x) for _ in range(3)])


class TestRefusals:
    @pytest.mark.parametrize(
        ("function", "words"),
        [
            (lambda x: x if x.sum() > 0 else -x, "read a value"),
            (lambda x: mt.inspect(x), "read a value"),
            (lambda x: x[x > 0], "shape that depends"),
            (lambda x: x * mt.put(torch.zeros(1).new_tensor(1.0)), "no tensor|send|read"),
            (lambda x: (x * torch.ones(1, requires_grad=True)).sum(), "call backward"),
            (lambda x: x.unsqueeze_(0), "changes the shape"),
        ],
    )
    def test_operations_that_cannot_be_traced_are_refused(
        self, mesh: Any, function: Any, words: str
    ) -> None:
        if "send" in words:
            with mt.no_mesh.activate():
                here = torch.ones(1)
            function, words = (lambda x: x * here.reshape(1) * mt.put(here)), "send a local tensor"
        with pytest.raises(TraceError, match=words):
            trace(function)(torch.ones(2))
        # The failed attempt leaves nothing behind.
        assert mt.inspect(trace(lambda x: x + 1)(torch.ones(1))).item() == 2

    def test_calls_of_actor_endpoints_are_refused(self, mesh: Any, procs: ProcMesh) -> None:
        class Adder(Actor):
            @endpoint
            def add(self, x: torch.Tensor) -> float:
                return float(x.sum())

        adder = procs.spawn("adder", Adder)
        with pytest.raises(TraceError, match="endpoint of an actor"):
            trace(lambda x: adder.add.call(x))(torch.ones(2))
        assert list(adder.add.call(torch.ones(2)).get().values()) == [2, 2]

    def test_optimizers_that_read_their_step_count_are_refused(self, mesh: Any) -> None:
        weight = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.Adam([weight])

        @trace
        def step() -> None:
            (weight * 2).sum().backward()
            optimizer.step()

        with pytest.raises(TraceError, match="fused=True"):
            step()

    def test_invalid_arguments_are_refused(self, mesh: Any) -> None:
        with pytest.raises(TraceError, match="hashable"):
            trace(lambda x, y: x)(torch.ones(1), bytearray(1))
        with pytest.raises(ValueError, match="invalid check_every -1"):
            trace(check_every=-1)
        with mt.no_mesh.activate(), pytest.raises(TensorError, match="no mesh is active"):
            trace(lambda: 1)()


class TestFailures:
    def test_the_error_names_the_line_and_other_ranks_do_not_wait(self, mesh: Any) -> None:
        rank = mesh.rank("dp")

        @trace
        def function(x: torch.Tensor, index: torch.Tensor) -> Any:
            chosen = x[index]  # the line of the failure
            return chosen.reduce("dp"), x + 1

        good = rank.view(1) * 0
        for _ in range(2):
            assert both(function(torch.ones(2), good)[0]) == [torch.tensor([2.0])] * 2
        for _ in range(2):
            lost, other = function(torch.ones(2), rank.view(1) * 9)
            for one in (lost, other, lost * 2):
                with pytest.raises(OpFailed, match=r"aten.index.Tensor failed on rank 1") as caught:
                    mt.inspect(one)
                assert "the line of the failure" in caught.value.stack
                assert "replayed here" in caught.value.stack
        again = both(function(torch.ones(2), good)[1])
        assert [one.tolist() for one in again] == [[2, 2]] * 2

    def test_results_and_writes_of_a_replay_with_a_lost_argument_are_lost(self, mesh: Any) -> None:
        kept = torch.zeros(1)

        @trace
        def function(x: torch.Tensor) -> torch.Tensor:
            kept.add_(x.sum())
            return (x * 2).reduce("dp")

        for _ in range(2):
            function(torch.ones(2))
        lost = torch.ones(2)[mesh.rank("dp").view(1) * 9]
        with pytest.raises(OpFailed, match=r"aten\.index"):
            mt.inspect(function(lost.expand(2)))
        with pytest.raises(OpFailed, match=r"aten\.index"):
            mt.inspect(kept)
        assert mt.inspect(torch.ones(1).reduce("dp")).item() == 2  # type: ignore[attr-defined]
