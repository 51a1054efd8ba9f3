"""Tensors on CUDA devices: the same results as locally, with NCCL or on a shared device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import mesh_tensor as mt
from mesh_core import this_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh
    from mesh_tensor import DeviceMesh

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
STEPS = 5


@pytest.fixture(scope="module")
def alone() -> Iterator[ProcMesh]:
    """One process, with its own device."""
    procs = this_host().spawn_procs({"dp": 1}, name="alone")
    yield procs
    procs.stop().get()


@pytest.fixture(scope="module")
def sharing() -> Iterator[ProcMesh]:
    """Two processes on one device."""
    procs = this_host().spawn_procs({"dp": 2}, proc_bind={"gpus": "0"}, name="sharing")
    yield procs
    procs.stop().get()


@pytest.fixture(params=["alone", "sharing"])
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    with request.getfixturevalue(request.param).activate() as mesh:
        yield mesh


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def loss_of(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(network(x), y)


def trained_locally(x: torch.Tensor, y: torch.Tensor) -> list[float]:
    network = model().cuda()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(network, x.cuda(), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("is_traced", [False, True], ids=["eager", "traced"])
def test_training_matches_the_losses_of_a_single_process(mesh: DeviceMesh, is_traced: bool) -> None:
    with mt.no_mesh.activate():
        draw = torch.Generator().manual_seed(1)
        x, y = torch.randn(8, 16, generator=draw), torch.randint(4, (8,), generator=draw)
        wanted = trained_locally(x, y)
        network = model()
    mt.put(network)
    network.to("cuda")
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, fused=True)
    x, y = mt.shard(x, "dp").cuda(), mt.shard(y, "dp").cuda()

    def step() -> torch.Tensor:
        loss = loss_of(network, x, y)
        optimizer.zero_grad()
        loss.backward()
        for parameter in network.parameters():
            assert parameter.grad is not None
            parameter.grad.reduce_("dp", "avg")  # type: ignore[attr-defined]
        optimizer.step()
        return loss.detach().reduce("dp", "avg")  # type: ignore[attr-defined, no-any-return]

    run = mt.trace(step) if is_traced else step
    losses = [run() for _ in range(STEPS)]
    assert losses[0].device.type == "cuda"
    assert [loss.item() for loss in mt.inspect(losses)] == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(
    ("reduction", "wanted"),
    [("sum", [3.0, 3.0]), ("avg", [1.5, 1.5]), ("max", [2.0, 2.0]), ("product", [2.0, 2.0])],
)
def test_reduction(sharing: ProcMesh, reduction: str, wanted: list[float]) -> None:
    with sharing.activate() as mesh:
        x = torch.ones(2, device="cuda") * (mesh.rank("dp") + 1)
        assert mt.inspect(x.reduce("dp", reduction), dp=1).tolist() == wanted


def test_stack_scatter_and_move(sharing: ProcMesh) -> None:
    with sharing.activate() as mesh:
        x = torch.arange(2.0, device="cuda") + 10 * mesh.rank("dp")
        stacked = x.reduce("dp", "stack")
        swapped = x.reduce("dp", "stack", scatter=True)
        scattered = x.reduce("dp", "sum", scatter=True)
        assert mt.inspect(stacked, dp=0).tolist() == [[0.0, 1.0], [10.0, 11.0]]
        assert mt.inspect(swapped, dp=1).tolist() == [1.0, 11.0]
        assert mt.inspect(scattered, dp=1).item() == 12.0
        first, second = mesh.slice(dp=0), mesh.slice(dp=1)
        with first.activate():
            value = torch.full((3,), 7.0, device="cuda")
        with second.activate():
            assert mt.inspect(value.to_mesh(second) * 2).tolist() == [14.0] * 3


def test_a_borrow_orders_the_work_of_two_streams(mesh: DeviceMesh) -> None:
    other = mt.Stream("other")
    x = torch.ones(1 << 20, device="cuda")
    for _ in range(20):
        x.add_(1)
    seen, borrow = other.borrow(x, mutable=True)
    with borrow:
        for _ in range(20):
            seen.mul_(1)
        seen.add_(1)
    assert mt.inspect(x[-3:]).tolist() == [22.0] * 3


def test_generators_of_the_device_are_restored(mesh: DeviceMesh) -> None:
    mt.random.manual_seed(3)
    state = mt.random.get_state()
    first = mt.inspect(torch.rand(4, device="cuda"))
    mt.random.set_state(state)
    again = mt.inspect(torch.rand(4, device="cuda"))
    with mt.no_mesh.activate():
        assert first.equal(again)


def test_fetched_values_are_on_the_cpu(mesh: DeviceMesh) -> None:
    found = mt.inspect(torch.ones(3, device="cuda", dtype=torch.bfloat16) / 2)
    assert (found.device.type, found.dtype, found.tolist()) == ("cpu", torch.bfloat16, [0.5] * 3)


def test_put_keeps_the_device_type_of_a_tensor(mesh: DeviceMesh) -> None:
    with mt.no_mesh.activate():
        value = torch.arange(4.0, device="cuda")
    x = mt.put(value)
    assert (x.device.type, mt.inspect((x + x.square()).sum()).item()) == ("cuda", 20.0)
