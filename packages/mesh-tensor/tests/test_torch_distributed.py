"""The multi-process features of torch inside remote functions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import mesh_tensor as mt
from mesh_tensor import RemoteModule, remote

SIZES = {"dp": 2}


def build() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def sharded(mesh: Any) -> torch.nn.Module:
    net = build()
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def parallel(mesh: Any) -> torch.nn.Module:
    return parallelize_module(build(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def trained_here(batch: torch.Tensor, steps: int) -> list[float]:
    net = build()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        loss = net(batch).pow(2).mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


BATCH = torch.linspace(-1, 1, 16).view(4, 4)


@pytest.mark.parametrize("keep_parameters", [False, True])
def test_fsdp_trains_in_a_remote_module(mesh: Any, keep_parameters: bool) -> None:
    with mt.no_mesh.activate():
        expected = trained_here(BATCH, 3)
    net = RemoteModule(sharded, mesh, keep_parameters=keep_parameters)
    optimizer: Any
    if keep_parameters:
        optimizer = net.optimizer(torch.optim.Adam, lr=0.05)
    else:
        assert {tuple(one.shape) for one in net.parameters()} == {(3, 4), (3,), (1, 6), (1,)}
        optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    halves = mesh.rank("dp")
    batch = torch.linspace(-1, 1, 16).view(2, 2, 4).index_select(0, halves.view(1)).squeeze(0)
    losses = []
    for _ in range(3):
        loss = net(batch).pow(2).mean()
        losses.append(mt.inspect(loss.detach().reduce("dp", "avg")).item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses == pytest.approx(expected, abs=1e-5)


def test_tensor_parallelism_trains_in_a_remote_module(mesh: Any) -> None:
    with mt.no_mesh.activate():
        expected = trained_here(BATCH, 3)
    net = RemoteModule(parallel, mesh, keep_parameters=True)
    optimizer = net.optimizer(torch.optim.Adam, lr=0.05)
    batch = torch.linspace(-1, 1, 16).view(4, 4)
    losses = []
    for _ in range(3):
        loss = net(batch).pow(2).mean()
        losses.append(mt.inspect(loss).item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses == pytest.approx(expected, abs=1e-5)


def test_dtensors_work_inside_functions_and_return_as_local_shards(mesh: Any) -> None:
    def multiply(mesh: Any, x: torch.Tensor) -> Any:
        split = distribute_tensor(x, mesh, [Shard(0)])
        both = (split @ split.T).redistribute(mesh, [Replicate()])
        assert isinstance(both, DTensor)
        return split, both.to_local()

    part, both = remote(multiply)(mesh, torch.arange(4.0).view(4, 1))
    assert mt.inspect(part, dp=1).tolist() == [[2], [3]]
    assert mt.inspect(both, dp=1)[3].tolist() == [0, 3, 6, 9]


def test_a_checkpoint_is_saved_and_loaded_by_all_processes(mesh: Any, tmp_path: Path) -> None:
    net = RemoteModule(sharded, mesh)
    before = mt.inspect(dict(net.state_dict()), dp=1)
    remote(_save, propagate="inspect")(net.ref, str(tmp_path))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    remote(_load, propagate="inspect")(net.ref, str(tmp_path))
    after = mt.inspect(dict(net.state_dict()), dp=1)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert before["0.weight"].any()


def _save(net: mt.OpaqueRef, path: str) -> None:
    checkpoint.save(net.value.state_dict(), checkpoint_id=path)


def _load(net: mt.OpaqueRef, path: str) -> None:
    state = net.value.state_dict()
    checkpoint.load(state, checkpoint_id=path)
    net.value.load_state_dict(state)
