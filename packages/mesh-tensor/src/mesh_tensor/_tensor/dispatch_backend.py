"""The implementation of operations on distributed tensors, which a higher layer registers.

Tensors are the lowest layer of the package, but their methods issue operations. They call the
registered backend, as PyTorch calls the kernels that are registered for a dispatch key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from mesh_core import Future
    from mesh_tensor._tensor.tensor import Tensor

__all__ = ["BackendSlot", "DispatchBackend", "backend_slot"]


@dataclass(frozen=True)
class DispatchBackend:
    """The functions that issue the operations of tensors.

    Attributes:
        dispatch: Issues an operation on at least one distributed tensor. Its arguments are the
            operation, and the positional and the keyword arguments.
        dispatch_in_mode: Issues an operation while a mesh is active, or runs it here if it is
            purely local. Its arguments are those of `TorchDispatchMode.__torch_dispatch__`.
        reduce: Implements `Tensor.reduce`.
        reduce_: Implements `Tensor.reduce_`.
        to_mesh: Implements `Tensor.to_mesh`.
        fetch_shard: Implements `Tensor.fetch`.
    """

    dispatch: Callable[..., Any]
    dispatch_in_mode: Callable[..., Any]
    reduce: Callable[..., Tensor]
    reduce_: Callable[..., Tensor]
    to_mesh: Callable[..., Tensor]
    fetch_shard: Callable[..., Future[torch.Tensor]]


class BackendSlot:
    """Holds the registered backend.

    Attributes:
        backend: The backend. The module of the engine registers it; no tensor exists before,
            because engines create all tensors.
    """

    __slots__ = ("backend",)

    backend: DispatchBackend


backend_slot = BackendSlot()
