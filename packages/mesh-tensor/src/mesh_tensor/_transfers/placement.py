"""Sending tensors of the program to processes, whole or in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from mesh_tensor._mesh.activation import mesh_or_active, no_mesh
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._mesh.device_mesh import DeviceMesh

__all__ = ["put", "shard"]

T = TypeVar("T")


def put(tree: T, mesh: DeviceMesh | None = None) -> T:
    """Send local tensors to all processes of a mesh; each process gets the same values.

    Args:
        tree: A tensor, a PyTorch pytree that contains tensors, or a module, whose parameters and
            buffers are replaced by distributed ones. Tensors that are already distributed are kept.
        mesh: The destination. Default: the active mesh.

    Returns:
        The same tree with distributed tensors; for a module, the module itself.

    Raises:
        TensorError: No mesh is passed and none is active.
    """
    goal = mesh_or_active(mesh)
    if isinstance(tree, torch.nn.Module):
        _put_module(tree, goal)
        return tree

    def sent(one: torch.Tensor) -> torch.Tensor:
        return one if type(one) is Tensor else _sent(one, goal)

    moved: T = pytree.tree_map_only(torch.Tensor, sent, tree)
    return moved


def shard(
    tensor: torch.Tensor,
    dims: str | Sequence[str] | None = None,
    axis: int = 0,
    mesh: DeviceMesh | None = None,
) -> Tensor:
    """Send each process of a mesh its part of a local tensor.

    Args:
        tensor: The tensor to split into equal parts.
        dims: The dimensions of the mesh along which processes get different parts, in row-major
            order. Default: all. Processes that differ only in other dimensions get the same part.
        axis: The dimension of the tensor to split.
        mesh: The destination. Default: the active mesh.

    Raises:
        TensorError: No mesh is passed and none is active.
        UnknownDim: The mesh has no such dimension.
        ValueError: The size of `axis` is not divisible by the number of parts.
    """
    goal = mesh_or_active(mesh)
    chosen = goal._dims(dims)
    parts = goal.size(chosen)
    if tensor.dim() == 0 or tensor.shape[axis] % parts:
        raise ValueError(
            f"dimension {axis} of {tuple(tensor.shape)} cannot be split into {parts} equal parts:"
            " pad it, or drop the remainder"
        )
    return goal._engine.put(goal, tensor, part=(chosen, axis % tensor.dim(), parts))


def _sent(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    made = mesh._engine.put(mesh, tensor)
    return made.requires_grad_() if tensor.requires_grad else made


def _put_module(module: torch.nn.Module, mesh: DeviceMesh) -> None:
    # Parameters and buffers that two modules share remain shared.
    done: dict[int, Any] = {}
    with no_mesh.activate():
        for one in module.modules():
            for name, parameter in one.named_parameters(recurse=False, remove_duplicate=False):
                if not isinstance(parameter, Tensor) and id(parameter) not in done:
                    made = mesh._engine.put(mesh, parameter)
                    done[id(parameter)] = torch.nn.Parameter(made, parameter.requires_grad)
                one._parameters[name] = done.get(id(parameter), parameter)
            for name, buffer in one.named_buffers(recurse=False, remove_duplicate=False):
                if type(buffer) is not Tensor and id(buffer) not in done:
                    done[id(buffer)] = mesh._engine.put(mesh, buffer)
                one._buffers[name] = done.get(id(buffer), buffer)
