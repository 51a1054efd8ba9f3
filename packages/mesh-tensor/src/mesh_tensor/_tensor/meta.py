"""What is known of a distributed tensor without asking anybody: interned, compared by identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._simulator.simulated_engine import Simulated

__all__ = ["Kind", "Meta", "MetaTable", "kind_of", "set_lazy"]


class Kind(NamedTuple):
    """What operations can tell tensors apart by.

    Attributes:
        shape: Its sizes.
        strides: How far its elements are from each other.
        offset: Where in its storage it begins.
        dtype: Of what type they are.
        device: Where.
        layout: Always `torch.strided`.
        lazy: Whether its elements are yet to be conjugated, and negated: 1 and 2, added.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    lazy: int


def kind_of(tensor: torch.Tensor) -> Kind:
    """Says of which kind a tensor is."""
    return Kind(
        tensor.shape,
        tensor.stride(),
        int(tensor.storage_offset()),
        tensor.dtype,
        tensor.device,
        tensor.layout,
        tensor.is_conj() + 2 * tensor.is_neg(),
    )


class Meta:
    """Shape, strides and all else that operations can tell tensors apart by, on one mesh.

    There is one object for each combination: equal means the same object.
    """

    __slots__ = (
        "__weakref__",
        "device",
        "dtype",
        "kind",
        "layout",
        "lazy",
        "mesh",
        "offset",
        "shape",
        "shell",
        "strides",
    )

    def __init__(self, mesh: DeviceMesh, kind: Kind, shell: torch.device) -> None:
        self.mesh = mesh
        self.kind = kind
        self.shape = kind.shape
        self.strides = kind.strides
        self.offset = kind.offset
        self.dtype = kind.dtype
        self.device = kind.device
        #: Where torch believes it to be: another device where it cannot work with that one here.
        self.shell = shell
        self.layout = kind.layout
        self.lazy = kind.lazy

    def __repr__(self) -> str:
        return f"<{self.dtype} {tuple(self.shape)} on {self.mesh}>"

    def storage_len(self) -> int:
        """Gives how many elements the storage needs at least."""
        reach = sum(
            (size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)
        )
        return self.offset + (reach + 1 if 0 not in self.shape else 0)

    def stand_in(self) -> torch.Tensor:
        """Makes a tensor of the same kind in this process, by the mode that is active."""
        dtype, device = self.dtype, self.device
        if self.offset:
            storage = torch.empty(self.storage_len(), dtype=dtype, device=device)
            made = storage.as_strided(self.shape, self.strides, self.offset)
        else:
            made = torch.empty_strided(self.shape, self.strides, dtype=dtype, device=device)
        set_lazy(made, self.lazy)
        return made


def set_lazy(tensor: torch.Tensor, lazy: int) -> None:
    """Notes in a tensor that its elements are yet to be conjugated, or negated."""
    if lazy & 1:
        torch._C._set_conj(tensor, True)
    if lazy & 2:
        torch._C._set_neg(tensor, True)


class MetaTable:
    """All that are in use: what no tensor and no plan has any more is forgotten.

    Args:
        simulated: Says where tensors are for torch, if that is not where they are.
    """

    def __init__(self, simulated: Simulated | None = None) -> None:
        self._simulated = simulated
        self._metas: WeakValueDictionary[tuple[DeviceMesh, Kind], Meta] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._metas)

    def of(self, mesh: DeviceMesh, tensor: torch.Tensor) -> Meta:
        """Gives that of a tensor which stands for one of the mesh."""
        return self.of_kind(mesh, kind_of(tensor))

    def dense(
        self, mesh: DeviceMesh, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Meta:
        """Gives that of a tensor whose elements lie one behind the other."""
        strides: list[int] = []
        step = 1
        for size in reversed(shape):
            strides.append(step)
            step *= max(size, 1)
        placed = torch.Size(shape), tuple(reversed(strides)), 0
        return self.of_kind(mesh, Kind(*placed, dtype, device, torch.strided, lazy=0))

    def moved(self, meta: Meta, mesh: DeviceMesh) -> Meta:
        """Gives the same on another mesh."""
        return self.of_kind(mesh, meta.kind)

    def of_kind(self, mesh: DeviceMesh, kind: Kind) -> Meta:
        """Gives that of a kind."""
        key = (mesh, kind)
        meta = self._metas.get(key)
        if meta is None:
            simulated = self._simulated
            shell = kind.device if simulated is None else simulated.shell_of(kind.device)
            meta = self._metas[key] = Meta(mesh, kind, shell)
        return meta
