"""PyTorch's own meshes and groups in a process, for FSDP, DTensor and similar features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import DeviceMesh as TorchMesh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup

    from mesh_tensor._worker.world import World

__all__ = ["device_mesh", "process_group"]


def device_mesh(world: World, ranks: bytes, device: str) -> TorchMesh:
    """Return PyTorch's mesh of some processes, with the same dimensions; always the same object."""
    key = (ranks, device)
    found = world.torch_meshes.get(key)
    if found is None:
        found = world.torch_meshes[key] = _made(world, ranks, device)
    return found


def process_group(world: World, ranks: bytes, dims: Sequence[str]) -> ProcessGroup:
    """Return the group of the processes that differ from this one in some dimensions only."""
    return world.group(world.peers(ranks, dims))


def _made(world: World, ranks: bytes, device: str) -> TorchMesh:
    region = world.region(ranks)
    # A mesh of one process may have no dimensions, but PyTorch requires at least one.
    labels = tuple(region.labels) or ("procs",)
    # All processes create the groups of the dimensions in the same order.
    groups = [process_group(world, ranks, (label,) if region.labels else ()) for label in labels]
    if len(groups) == 1:
        return TorchMesh.from_group(groups[0], device, mesh_dim_names=labels)
    places = torch.tensor(region.ranks()).view(tuple(region.sizes))
    return TorchMesh.from_group(groups, device, mesh=places, mesh_dim_names=labels)
