"""Plain PyTorch code gives the same results on the processes of a mesh as in one process."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading

import pytest
import torch
from torch import nn

from mesh_core import ProcMesh
from mesh_core.testing import wait_until
from mesh_tensor import (
    DeviceMesh,
    LocalTensorError,
    RanksDisagree,
    Tensor,
    WrongMesh,
    fetch_shard,
    get_active_mesh,
    inspect,
    no_mesh,
    put,
    shard,
)


def test_tensors_are_created_and_computed_on_every_process(mesh: DeviceMesh) -> None:
    x = torch.arange(6.0).view(2, 3)
    y = (x @ x.T + 1).relu().sum(0)
    assert isinstance(y, Tensor)
    with no_mesh.activate():
        there = torch.arange(6.0).view(2, 3)
        wanted = (there @ there.T + 1).relu().sum(0)
        for dp in range(2):
            for tp in range(2):
                assert inspect(y, dp=dp, tp=tp).equal(wanted)


def test_mesh_rank_returns_the_rank_of_each_process(mesh: DeviceMesh) -> None:
    along = mesh.rank("tp")
    row_by_row = mesh.rank(["dp", "tp"])
    backwards = mesh.rank(["tp", "dp"])
    found = [
        [one.item() for one in inspect([along, row_by_row, backwards], dp=dp, tp=tp)]
        for dp in range(2)
        for tp in range(2)
    ]
    assert found == [[0, 0, 0], [1, 1, 2], [0, 2, 1], [1, 3, 3]]


def test_group_norm_keeps_the_channels_last_memory_format(mesh: DeviceMesh) -> None:
    def last_channels() -> torch.Tensor:
        x = torch.arange(180.0).view(2, 6, 5, 3).contiguous(memory_format=torch.channels_last)
        return torch.nn.functional.group_norm(x, 2)

    given = last_channels()
    with no_mesh.activate():
        expected = last_channels()
    assert given.stride() == expected.stride()
    flat = given.permute(0, 2, 3, 1).view(-1)
    assert inspect(flat).equal(expected.permute(0, 2, 3, 1).reshape(-1))


def test_mutation_is_seen_through_views(mesh: DeviceMesh) -> None:
    x = torch.zeros(4, 4)
    row, corner = x[1], x[:2, :2]
    row.add_(1)
    corner.mul_(5)
    x.t().sub_(1)
    assert inspect(x).tolist() == [
        [-1, -1, -1, -1],
        [4, 4, 0, 0],
        [-1, -1, -1, -1],
        [-1, -1, -1, -1],
    ]
    assert inspect(row).tolist() == [4, 4, 0, 0]


def test_modules_gradients_and_optimizers_match_local_torch(mesh: DeviceMesh) -> None:
    torch.manual_seed(0)
    with no_mesh.activate():
        alone = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))
        model.load_state_dict(alone.state_dict())
        x = torch.randn(5, 4)
    put(model)
    for module in (alone, model):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
        with no_mesh.activate() if module is alone else mesh.activate():
            for _ in range(3):
                loss = module(x if module is alone else put(x)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert inspect(one.detach(), dp=1, tp=1).equal(other.detach())


def test_a_tree_is_fetched_with_its_structure(mesh: DeviceMesh) -> None:
    tree = {"a": torch.ones(2), "b": [torch.zeros(()), 3, "c"]}
    found = fetch_shard(tree, {"dp": 1, "tp": 0}).get()
    assert found["a"].tolist() == [1, 1]
    assert found["b"][0].item() == 0
    assert found["b"][1:] == [3, "c"]


def test_a_fetch_can_be_awaited(mesh: DeviceMesh) -> None:
    async def fetched() -> list[float]:
        values: list[float] = (await torch.ones(2).fetch()).tolist()  # type: ignore[attr-defined]
        return values

    assert asyncio.run(fetched()) == [1, 1]


def test_a_partial_coordinate_is_refused(mesh: DeviceMesh) -> None:
    with pytest.raises(ValueError, match="a coordinate for tp"):
        inspect(torch.ones(1), dp=0)


def test_item_requires_the_same_value_on_all_ranks(mesh: DeviceMesh) -> None:
    assert torch.full((), 7.5).item() == 7.5
    assert bool((torch.ones(3) > 0).all())
    with pytest.raises(RanksDisagree, match=r"different values \(0, 1"):
        mesh.rank("tp").item()


def test_scalars_known_to_the_program_are_not_fetched(mesh: DeviceMesh) -> None:
    steps = torch.tensor(0.0)
    alias = steps.detach()
    for expected in (1.0, 2.0, 3.0):
        steps += 1
        assert steps.item() == alias.item() == expected
    # A write that Mesh does not track ends the optimization; the value is still correct.
    steps.view(1).mul_(torch.tensor([5.0]))
    assert steps.item() == alias.item() == 15.0
    assert inspect(steps).item() == 15.0


def test_small_local_tensors_are_sent_implicitly(mesh: DeviceMesh) -> None:
    with no_mesh.activate():
        here, large = torch.tensor([1.0, 2.0]), torch.zeros(100_000)
    assert inspect(torch.ones(2) * here).tolist() == [1, 2]
    with pytest.raises(LocalTensorError, match=r"mesh_tensor\.put"):
        torch.zeros(100_000) + large
    sent = put(large)
    large.add_(1)
    assert inspect(torch.zeros(100_000) + sent).sum().item() == 0


def test_shard_sends_each_process_its_part(mesh: DeviceMesh) -> None:
    with no_mesh.activate():
        whole = torch.arange(24).view(4, 6)
    rows, columns = shard(whole, "dp"), shard(whole, ["dp", "tp"], axis=0)
    both = shard(whole, "tp", axis=1)
    assert inspect(rows, dp=1, tp=0).equal(whole[2:])
    assert inspect(columns, dp=1, tp=0).equal(whole[2:3])
    assert inspect(both, dp=0, tp=1).equal(whole[:, 3:])
    with pytest.raises(ValueError, match="cannot be split into 2"):
        shard(whole[:3], "dp")


def test_slices_of_the_mesh_are_meshes(procs: ProcMesh, mesh: DeviceMesh) -> None:
    with procs.slice(dp=1).activate() as row:
        assert get_active_mesh() is row
        y = row.rank("tp") * 10
    assert get_active_mesh() is mesh
    assert [inspect(y, tp=tp).item() for tp in range(2)] == [0, 10]
    with pytest.raises(WrongMesh, match="to_mesh"):
        y + torch.ones(())


def test_the_active_mesh_is_local_to_the_thread_and_the_task(mesh: DeviceMesh) -> None:
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append((get_active_mesh(), torch.ones(1))))
    thread.start()
    thread.join()
    ((elsewhere, made),) = seen
    assert elsewhere is None
    assert not isinstance(made, Tensor)

    async def other() -> bool:
        with no_mesh.activate():
            await asyncio.sleep(0)
            return isinstance(torch.ones(1), Tensor)

    async def own() -> bool:
        await asyncio.sleep(0)
        return isinstance(torch.ones(1), Tensor)

    async def both() -> list[bool]:
        return list(await asyncio.gather(other(), own()))

    assert asyncio.run(both()) == [False, True]


def test_slots_of_deleted_tensors_are_reused(mesh: DeviceMesh) -> None:
    stream = mesh._engine.stream
    for _ in range(3):
        torch.ones(3) + 1
    gc.collect()
    inspect(torch.ones(1))
    before = stream._slots
    for _ in range(500):
        x = torch.ones(3)
        x = x + 1
    inspect(x)
    assert stream._slots <= before + 4


def test_a_program_that_runs_ahead_is_throttled(mesh: DeviceMesh) -> None:
    x = torch.zeros(())
    for _ in range(60_000):
        x.add_(1)
    stream = mesh._engine.stream
    assert stream._issued - stream._call_sites_from <= 60_000
    assert inspect(x).item() == 60_000


def test_a_buffered_operation_is_sent_when_the_program_is_idle(mesh: DeviceMesh) -> None:
    stream = mesh._engine.stream
    # The processes need some time to start on a busy machine.
    inspect(torch.ones(1))
    torch.ones(3)

    def is_done() -> bool:
        stream.settle()
        return not stream._in_flight and not stream._buffer

    wait_until(is_done)


def test_threads_issue_operations_concurrently(mesh: DeviceMesh) -> None:
    found: list[float] = []

    def work(start: float) -> None:
        with mesh.activate():
            x = torch.full((), start)
            for _ in range(300):
                x = x + 1
            found.append(inspect(x).item())

    threads = [threading.Thread(target=work, args=(1000.0 * n,)) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(found) == [300, 1300, 2300, 3300]


def test_a_device_mesh_cannot_be_pickled(mesh: DeviceMesh) -> None:
    with pytest.raises(TypeError, match="a device mesh cannot be pickled"):
        pickle.dumps(mesh)
