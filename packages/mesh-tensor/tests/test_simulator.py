"""Simulated processes: the memory of real ones, time computed by formulas, no values."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import mesh_tensor as mt

BF16 = torch.bfloat16
LINK = mt.Link(bytes_per_s=1e9, latency_s=1e-5)
#: One second per 1e12 operations or 1e12 bytes, and no other costs.
PLAIN = mt.CostModel(
    {
        "cuda": mt.DeviceModel({torch.float32: 1e12}, 1e12, 1 << 34),
        "cpu": mt.DeviceModel({torch.float32: 1e12}, 1e12, 1 << 34),
    },
    inside=LINK,
    between=LINK,
    issue_s=0.0,
    dispatch_s=0.0,
    delivery_s=0.0,
)


def total_s(simulator: mt.Simulator) -> float:
    return simulator.report().total_s


class TestTime:
    def test_a_matmul_takes_time_proportional_to_its_flops(self) -> None:
        simulator = mt.Simulator({"gpu": 2}, PLAIN)
        with simulator.activate():
            x = torch.empty(1000, 1000, device="cuda")
            _ = x @ x
        assert total_s(simulator) == pytest.approx(2 * 1000**3 / 1e12)

    def test_an_elementwise_operation_takes_time_proportional_to_its_bytes(self) -> None:
        simulator = mt.Simulator({"gpu": 2}, PLAIN)
        with simulator.activate():
            x = torch.empty(1000, 1000, device="cuda")
            _ = (x + x).t()[:500].unsqueeze(0)
        # The addition reads twice and writes once; views cost nothing.
        assert total_s(simulator) == pytest.approx(3 * 4e6 / 1e12)

    def test_a_chain_of_collectives_takes_the_sum_of_the_predicted_times(self) -> None:
        simulator = mt.Simulator({"dp": 4, "gpu": 8}, PLAIN)
        with simulator.activate():
            x = torch.empty(8, 1000, device="cuda")
            for _ in range(3):
                x.reduce_("gpu")
            _ = x.reduce("gpu", "sum", scatter=True)
            _ = x.reduce("gpu", "stack")
            _ = x.reduce("gpu", "stack", scatter=True)
        nbytes, latency_s, rate = 32_000, 1e-5, 1e9
        ring_s = 14 * latency_s + 2 * 7 / 8 * nbytes / rate
        tree_s = 6 * latency_s + 2 * nbytes / rate
        assert tree_s < ring_s
        scatter_s = 7 * latency_s + 7 / 8 * nbytes / rate
        gather_s = 7 * latency_s + 7 * nbytes / rate
        assert total_s(simulator) == pytest.approx(3 * tree_s + 2 * scatter_s + gather_s)

    def test_the_first_rank_at_a_collective_waits(self) -> None:
        simulator = mt.Simulator({"gpu": 2}, PLAIN)
        with simulator.activate() as mesh:
            with mesh.slice(gpu=1).activate():
                x = torch.empty(1000, 1000, device="cuda")
                for _ in range(5):
                    _ = x @ x
            torch.empty(1000, device="cuda").reduce("gpu")
        first, second = simulator.report().of("cuda")
        assert first.ranks == (0,)
        assert first.compute_s == 0
        assert second.compute_s == pytest.approx(0.01)
        assert first.waiting_s == pytest.approx(0.01)
        assert second.waiting_s == 0
        assert first.communication_s == second.communication_s > 0

    @pytest.mark.parametrize(("stages", "parts"), [(2, 4), (4, 4), (4, 12)])
    def test_a_pipeline_has_the_textbook_bubble(self, stages: int, parts: int) -> None:
        free = mt.Link(bytes_per_s=1e30, latency_s=0.0)
        simulator = mt.Simulator({"stage": stages}, replace(PLAIN, inside=free, between=free))
        with simulator.activate() as mesh:
            places = [mesh.slice(stage=index) for index in range(stages)]
            for _ in range(parts):
                with places[0].activate():
                    x: Any = torch.empty(1000, 1000, device="cuda")
                for index, place in enumerate(places):
                    x = x if index == 0 else mt.to_mesh(x, place)
                    x = x @ x
        report = simulator.report()
        work_s = 2e-3 * parts
        assert report.total_s == pytest.approx(2e-3 * (parts + stages - 1))
        for one in report.of("cuda"):
            bubble = 1 - one.compute_s / report.total_s
            assert one.compute_s == pytest.approx(work_s)
            assert bubble == pytest.approx((stages - 1) / (parts + stages - 1))

    def test_devices_starve_when_the_program_is_the_bottleneck(self) -> None:
        simulator = mt.Simulator({"gpu": 4}, replace(PLAIN, issue_s=1e-3))
        with simulator.activate():
            x = torch.empty(100, 100, device="cuda")
            for _ in range(9):
                x = x + x
        report = simulator.report()
        assert report.program_s == pytest.approx(0.01)
        (use,) = report.of("cuda")
        assert use.starved_s > 0.9 * report.total_s

    def test_the_times_of_a_device_add_up_to_the_total(self) -> None:
        simulator = mt.Simulator({"dp": 4, "gpu": 8})
        with simulator.activate() as mesh:
            model = nn.Linear(64, 64, device="cuda")
            loss = model(torch.ones(8, 64, device="cuda") * mesh.rank("dp")).sum()
            loss.reduce("dp").backward()
        report = simulator.report()
        for one in report.devices:
            parts = one.compute_s + one.communication_s + one.waiting_s + one.starved_s + one.idle_s
            assert parts == pytest.approx(report.total_s)

    def test_simulating_a_thousand_devices_costs_as_much_as_simulating_two(self) -> None:
        def took(simulator: mt.Simulator) -> float:
            with simulator.activate():
                model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).to("cuda", BF16)
                optimizer = torch.optim.AdamW(model.parameters())

                def step() -> None:
                    model(torch.ones(16, 512, device="cuda", dtype=BF16)).sum().backward()
                    for parameter in model.parameters():
                        assert parameter.grad is not None
                        parameter.grad.reduce_("dp", "avg")
                    optimizer.step()
                    optimizer.zero_grad()

                step()
                began = time.thread_time()
                step()
                simulator.report()
                return time.thread_time() - began

        took(mt.Simulator({"dp": 2}))
        assert took(mt.Simulator({"dp": 1000})) < 3 * took(mt.Simulator({"dp": 2})) + 0.05


class TestMemory:
    def test_memory_of_deleted_tensors_is_released(self) -> None:
        simulator = mt.Simulator({"gpu": 2}, PLAIN)
        with simulator.activate():
            x = torch.empty(1000, device="cuda")
            view = x[10:20]
            y = x + 1
            del x
            (use,) = simulator.report().of("cuda")
            assert use.live_bytes == 8000
            del view
            (use,) = simulator.report().of("cuda")
            assert (use.live_bytes, use.peak_bytes) == (4000, 8000)
            del y

    def test_a_tensor_of_a_slice_uses_memory_only_on_that_slice(self) -> None:
        simulator = mt.Simulator({"dp": 2, "gpu": 4}, PLAIN)
        with simulator.activate() as mesh, mesh.slice(gpu=2).activate():
            x = torch.empty(1000, device="cuda")
            live = {one.ranks: one.live_bytes for one in simulator.report().of("cuda")}
        assert live[(2, 6)] == 4000
        assert sum(live.values()) == 4000
        del x

    def test_a_tensor_larger_than_the_device_memory_does_not_fit(self) -> None:
        simulator = mt.Simulator({"gpu": 8})
        with simulator.activate():
            x = torch.empty(50_000, 1_000_000, dtype=torch.bfloat16, device="cuda")
        report = simulator.report()
        assert not report.fits
        assert report.peak_bytes() == 100_000_000_000
        assert "does not fit" in str(report)
        del x

    def test_the_peak_of_a_step_includes_live_tensors_but_no_earlier_peak(self) -> None:
        simulator = mt.Simulator({"gpu": 2}, PLAIN)
        with simulator.activate():
            torch.empty(9000, device="cuda")
            x = torch.empty(1000, device="cuda")
            with simulator.step() as step:
                _ = x + 1
        (use,) = step.report.of("cuda")
        assert use.peak_bytes == 8000
        assert step.report.total_s == pytest.approx(8000 / 1e12)


class TestDevices:
    """Devices by name; torch is built without support for them where this runs."""

    @pytest.fixture
    def simulator(self) -> mt.Simulator:
        return mt.Simulator({"gpu": 8})

    def test_factories_moves_and_gradients_keep_the_device(self, simulator: mt.Simulator) -> None:
        with simulator.activate():
            x = torch.ones(3, device="cuda", requires_grad=True)
            here = torch.ones(3)
            assert here.device.type == "cpu"
            assert here.to("cuda").device == here.cuda().device == torch.device("cuda:0")
            assert x.to("cuda") is x
            assert x.cpu().device.type == "cpu"
            assert torch.tensor([1.0, 2.0], device="cuda").is_cuda
            assert x.new_zeros(2).is_cuda
            assert torch.zeros_like(x).is_cuda
            x[torch.tensor([0, 2], device="cuda")].cpu().sum().backward()
            assert x.grad is not None
            assert x.grad.is_cuda

    def test_modules_are_created_on_the_default_device(self, simulator: mt.Simulator) -> None:
        with simulator.activate(), torch.device("cuda"):
            model = nn.Sequential(nn.Embedding(10, 8), nn.BatchNorm1d(3), nn.Dropout(0.5))
            y = model(torch.zeros(2, 3, dtype=torch.int64))
            y.sum().backward()
        assert all(one.device.type == "cuda" for one in model.parameters())
        assert all(one.device.type == "cuda" for one in model.buffers())

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_attention_does_not_keep_all_scores(
        self, simulator: mt.Simulator, dtype: torch.dtype
    ) -> None:
        with simulator.activate():
            query = torch.empty(1, 8, 4096, 64, device="cuda", dtype=dtype, requires_grad=True)
            y = nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
            assert y.shape == query.shape
            y.sum().backward()
        scores = 8 * 4096 * 4096 * dtype.itemsize
        assert simulator.report().peak_bytes() < scores

    def test_an_operation_on_two_devices_is_refused(self, simulator: mt.Simulator) -> None:
        with simulator.activate(), pytest.raises(RuntimeError, match="device"):
            torch.ones(3, device="cuda") + torch.ones(3)

    def test_a_device_missing_from_the_cost_model_is_refused(self, simulator: mt.Simulator) -> None:
        with simulator.activate(), pytest.raises(ValueError, match="xpu"):
            torch.ones(3, device="xpu")


class TestValues:
    def test_fetching_values_is_refused(self) -> None:
        simulator = mt.Simulator({"gpu": 2})
        with simulator.activate():
            x = torch.ones(3, device="cuda")
            for ask in (mt.inspect, lambda one: one.sum().item(), torch.nonzero):
                with pytest.raises(mt.NoValues, match="fake_values"):
                    ask(x)
            with pytest.raises(mt.NoValues, match="propagate"):
                mt.remote(lambda one: one + 1)(x)
            # Later operations are not affected.
            assert (x + 1).shape == (3,)

    def test_fake_values_are_zeros_and_the_program_waits_for_them(self) -> None:
        simulator = mt.Simulator({"gpu": 2}, replace(PLAIN, delivery_s=1e-3), fake_values=True)
        with simulator.activate():
            x = torch.ones(1000, 1000, device="cuda")
            assert mt.inspect((x @ x)[0, :2], gpu=1).tolist() == [0, 0]
            assert (x > 0).any().item() is False
        # Each fetch takes the round trip to the processes and their computation.
        assert simulator.report().program_s == pytest.approx(2 * 2e-3 + 2e-3, rel=0.01)

    def test_step_counts_of_optimizers_are_known(self) -> None:
        simulator = mt.Simulator({"gpu": 2})
        with simulator.activate():
            model = nn.Linear(4, 4, device="cuda")
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(2):
                model(torch.ones(1, 4, device="cuda")).sum().backward()
                optimizer.step()


class TestRemote:
    def test_a_remote_function_takes_the_time_of_its_cost_rule(self) -> None:
        @mt.remote(propagate=lambda x, scale: torch.empty_like(x))
        def scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
            return x * scale

        asked: list[Any] = []

        def cost(x: torch.Tensor, scale: float) -> float:
            asked.append((tuple(x.shape), scale))
            return 0.5

        simulator = mt.Simulator({"gpu": 2}, PLAIN, costs={scaled: cost})
        with simulator.activate():
            x = torch.empty(1000, device="cuda")
            y = scaled(scaled(x, 2.0), 2.0)
        report = simulator.report()
        assert y.shape == (1000,)
        assert report.total_s == pytest.approx(1.0)
        assert report.peak_bytes() == 12_000
        assert asked == [((1000,), 2.0)]

    def test_other_functions_take_time_proportional_to_their_bytes(self) -> None:
        simulator = mt.Simulator({"gpu": 2}, PLAIN)
        with simulator.activate():
            x = torch.empty(1000, device="cuda")
            mt.remote(lambda one: one + 1, propagate=torch.empty_like)(x)
            mt.random.manual_seed(1)
        assert total_s(simulator) == pytest.approx(8000 / 1e12)


class TestTraces:
    def test_a_replay_has_the_recorded_costs_without_the_program_time(self) -> None:
        def report(how: Any) -> mt.SimulationReport:
            simulator = mt.Simulator({"dp": 16}, replace(PLAIN, issue_s=1e-5))
            with simulator.activate():
                model = nn.Sequential(nn.Linear(64, 64), nn.GELU()).to("cuda")

                def step(x: torch.Tensor) -> torch.Tensor:
                    loss = model(x).square().mean()
                    loss.backward()
                    for one in model.parameters():
                        assert one.grad is not None
                        one.grad = mt.reduce(one.grad, "dp", "avg")  # type: ignore[arg-type]
                    return loss.detach()

                step = how(step)
                x = torch.ones(8, 64, device="cuda")
                for _ in range(2):
                    step(x)
                    model.zero_grad()
                with simulator.step() as part:
                    step(x)
            return part.report

        plain, replayed = report(lambda step: step), report(mt.trace)
        assert replayed.program_s == pytest.approx(1e-5)
        assert plain.program_s > 20 * replayed.program_s
        assert replayed.of("cuda")[0].compute_s == pytest.approx(plain.of("cuda")[0].compute_s)
        assert replayed.of("cuda")[0].live_bytes == plain.of("cuda")[0].live_bytes
        assert {one.line for one in replayed.lines} == {one.line for one in plain.lines}


class TestMeasured:
    def test_measured_operation_times_are_used(self, tmp_path: Any) -> None:
        x = torch.ones(300, 300)
        with mt.OpTimes() as times:
            for _ in range(3):
                _ = x @ x
        times.save(tmp_path / "times.json")
        model = PLAIN.measured(mt.OpTimes.load(tmp_path / "times.json"))
        simulator = mt.Simulator({"gpu": 2}, model)
        with simulator.activate():
            y = torch.empty(300, 300)
            _ = y @ y
        took_s = total_s(simulator)
        assert took_s != pytest.approx(2 * 300**3 / 1e12)
        assert 1e-6 < took_s < 1

    def test_the_time_of_the_program_can_be_included(self) -> None:
        simulator = mt.Simulator({"gpu": 2}, replace(PLAIN, issue_s=None))
        with simulator.activate():
            x = torch.ones(3, device="cuda")
            for _ in range(1000):
                x = x + 1
        assert 1e-3 < simulator.report().program_s < 1


class TestTrace:
    def test_a_timeline_shows_all_operations_of_one_process_per_kind(self, tmp_path: Any) -> None:
        simulator = mt.Simulator({"dp": 500, "stage": 2}, PLAIN)
        with simulator.activate() as mesh:
            x = torch.empty(100, 100, device="cuda")
            x = x @ x
            with mesh.slice(stage=1).activate():
                y = torch.empty(100, 100, device="cuda")
                _ = y + y
            x.reduce("dp")
        simulator.trace(tmp_path / "trace.json")
        rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        done = [(row["pid"], row["name"]) for row in rows if row["ph"] == "X"]
        assert done == [
            *((0, name) for name in ("aten.mm.default", "reduce(sum)")),
            *((1, name) for name in ("aten.mm.default", "aten.add.Tensor", "reduce(sum)")),
        ]
        assert all("test_simulator.py" in row["args"]["line"] for row in rows if row["ph"] == "X")
