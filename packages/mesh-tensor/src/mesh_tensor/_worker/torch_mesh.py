"""torch's own meshes and groups in a process, so that FSDP, DTensor and their like work there."""

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
    """Gives torch's mesh of some processes, with the same dimensions; the same object each time."""
    key = (ranks, device)
    found = world.torch_meshes.get(key)
    if found is None:
        found = world.torch_meshes[key] = _made(world, ranks, device)
    return found


def process_group(world: World, ranks: bytes, dims: Sequence[str]) -> ProcessGroup:
    """Gives the group of those that differ from this process in some dimensions only."""
    return world.group(world.peers(ranks, dims))


def _made(world: World, ranks: bytes, device: str) -> TorchMesh:
    region = world.region(ranks)
    # A mesh of one process may have no dimension left; torch's has one at least.
    labels = tuple(region.labels) or ("procs",)
    # All processes ask for the groups of the dimensions in the same order.
    groups = [process_group(world, ranks, (label,) if region.labels else ()) for label in labels]
    if len(groups) == 1:
        return TorchMesh.from_group(groups[0], device, mesh_dim_names=labels)
    places = torch.tensor(region.ranks()).view(tuple(region.sizes))
    return TorchMesh.from_group(groups, device, mesh=places, mesh_dim_names=labels)
