"""Metadata of distributed tensors that is known locally: interned, and compared by identity."""

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
    """All properties by which operations can distinguish tensors.

    Attributes:
        shape: The size of each dimension.
        strides: The stride of each dimension, in elements.
        offset: The offset of the first element in the storage, in elements.
        dtype: The type of the elements.
        device: The device in each process.
        layout: Always `torch.strided`.
        lazy: The sum of 1 if the elements are lazily conjugated and 2 if they are lazily negated.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    lazy: int


def kind_of(tensor: torch.Tensor) -> Kind:
    """Return the kind of a tensor."""
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
    """Shape, strides and all other metadata of a tensor on one mesh.

    Instances are interned: equal metadata is always the same object.
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
        "strides",
        "visible_device",
    )

    def __init__(self, mesh: DeviceMesh, kind: Kind, visible_device: torch.device) -> None:
        self.mesh = mesh
        self.kind = kind
        self.shape = kind.shape
        self.strides = kind.strides
        self.offset = kind.offset
        self.dtype = kind.dtype
        self.device = kind.device
        #: The device that PyTorch sees. It is another device if PyTorch cannot use `device` in this
        #: process.
        self.visible_device = visible_device
        self.layout = kind.layout
        self.lazy = kind.lazy

    def __repr__(self) -> str:
        return f"<{self.dtype} {tuple(self.shape)} on {self.mesh}>"

    def storage_len(self) -> int:
        """Return the minimum number of elements of the storage."""
        reach = sum(
            (size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)
        )
        return self.offset + (reach + 1 if 0 not in self.shape else 0)

    def fake_tensor(self) -> torch.Tensor:
        """Create a tensor of the same kind in this process, under the active dispatch mode."""
        dtype, device = self.dtype, self.device
        if self.offset:
            storage = torch.empty(self.storage_len(), dtype=dtype, device=device)
            made = storage.as_strided(self.shape, self.strides, self.offset)
        else:
            made = torch.empty_strided(self.shape, self.strides, dtype=dtype, device=device)
        set_lazy(made, self.lazy)
        return made


def set_lazy(tensor: torch.Tensor, lazy: int) -> None:
    """Set the lazy conjugation and negation bits of a tensor."""
    if lazy & 1:
        torch._C._set_conj(tensor, True)
    if lazy & 2:
        torch._C._set_neg(tensor, True)


class MetaTable:
    """The metadata objects in use. Entries that no tensor and no compiled op refers to are dropped.

    Args:
        simulated: The simulation, if any. It determines the devices that PyTorch sees.
    """

    def __init__(self, simulated: Simulated | None = None) -> None:
        self._simulated = simulated
        self._metas: WeakValueDictionary[tuple[DeviceMesh, Kind], Meta] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._metas)

    def of(self, mesh: DeviceMesh, tensor: torch.Tensor) -> Meta:
        """Return the metadata of a distributed tensor on `mesh` that is like a local tensor."""
        return self.of_kind(mesh, kind_of(tensor))

    def dense(
        self, mesh: DeviceMesh, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Meta:
        """Return the metadata of a contiguous tensor."""
        strides: list[int] = []
        step = 1
        for size in reversed(shape):
            strides.append(step)
            step *= max(size, 1)
        placed = torch.Size(shape), tuple(reversed(strides)), 0
        return self.of_kind(mesh, Kind(*placed, dtype, device, torch.strided, lazy=0))

    def moved(self, meta: Meta, mesh: DeviceMesh) -> Meta:
        """Return the same metadata on another mesh."""
        return self.of_kind(mesh, meta.kind)

    def of_kind(self, mesh: DeviceMesh, kind: Kind) -> Meta:
        """Return the metadata of a kind."""
        key = (mesh, kind)
        meta = self._metas.get(key)
        if meta is None:
            simulated = self._simulated
            visible_device = (
                kind.device if simulated is None else simulated.visible_device_of(kind.device)
            )
            meta = self._metas[key] = Meta(mesh, kind, visible_device)
        return meta
