"""Streams of simulated processes: concurrency, and borrowed memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mesh_tensor as mt

LINK = mt.Link(bytes_per_s=1e9, latency_s=0.0)
DEVICE = mt.DeviceModel({torch.float32: 1e12}, 1e12, 1 << 34)
PLAIN = mt.CostModel(
    {"cuda": DEVICE, "cpu": DEVICE},
    inside=LINK,
    between=LINK,
    issue_s=0.0,
    dispatch_s=0.0,
    delivery_s=0.0,
)


def reduced_beside(work: int) -> mt.SimulationReport:
    """Reduce for 2 ms on another stream, while a device computes for `work` times 2 ms."""
    simulator, stream = mt.Simulator({"gpu": 2}, PLAIN), mt.Stream("comm")
    with simulator.activate():
        x = torch.empty(1000, 1000, device="cuda")
        gradient = torch.empty(500_000, device="cuda")
        borrowed, borrow = stream.borrow(gradient, mutable=True)  # type: ignore[arg-type]
        borrowed.reduce_("gpu")
        for _ in range(work):
            _ = x @ x
        borrow.drop()
        gradient += 1
    return simulator.report()


@pytest.mark.parametrize(("work", "waiting_s"), [(3, 0.0), (1, 0.0), (0, 2e-3)])
def test_a_collective_on_another_stream_hides_behind_compute(work: int, waiting_s: float) -> None:
    report = reduced_beside(work)
    add_s = 4e6 / 1e12
    assert report.total_s == pytest.approx(2e-3 * max(work, 1) + add_s)
    own, other = report.of("cuda")
    assert (own.stream, other.stream) == (0, 1)
    assert other.communication_s == pytest.approx(2e-3)
    assert own.waiting_s == pytest.approx(waiting_s)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("mutable", [False, True])
def test_borrowed_memory_is_released(device: str, mutable: bool) -> None:
    simulator, stream = mt.Simulator({"gpu": 2}, PLAIN), mt.Stream("other")
    with simulator.activate():
        x: Any = torch.empty(1000, device=device)
        borrowed, borrow = stream.borrow(x, mutable=mutable)
        with stream.activate():
            y = borrowed + 1
        borrow.drop()
        x.add_(1)
        assert simulator.report().of(device)[0].live_bytes == 8000
        del x, y, borrowed, borrow
        # The next operation releases dropped tensors.
        torch.empty(0)
    assert simulator.report().of(device)[0].live_bytes == 0
