"""The tensors that programs use: one value of the same kind in each process of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from mesh_core.spi import RequiresTensorEngine
from mesh_tensor._errors import LocalTensorError
from mesh_tensor._tensor.dispatch_backend import backend_slot
from mesh_tensor._tensor.meta import set_lazy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core import Future
    from mesh_tensor._dispatch.constant_folding import KnownScalar
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._streams.stream import Stream
    from mesh_tensor._tensor.meta import Meta
    from mesh_tensor._tensor.ref import Ref

__all__ = ["Tensor", "set_meta", "wrap"]

#: The descriptor of `tensor.data` for other tensors.
_data: Any = torch._C.TensorBase.data


class Tensor(torch.Tensor):
    """A tensor in each process of a mesh; all have the same shape, strides, dtype and device.

    Operations are issued to the processes and return immediately. The tensor has no global shape:
    the program defines how the local tensors belong together, for example with `reduce`.
    """

    _meta: Meta
    _ref: Ref
    #: The value, if the tensor is a scalar that the program knows.
    _known_scalar: KnownScalar | None = None

    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Issue an operation. PyTorch calls this below autograd."""
        return backend_slot.backend.dispatch(func, args, kwargs or {})

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of processes that hold the tensor."""
        return self._meta.mesh._on(None)

    @property
    def stream(self) -> Stream:
        """The stream that the tensor belongs to."""
        return self._meta.mesh._stream_slots.stream

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device in each process; the program itself need not have such a device."""
        return self._meta.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Whether the device is a CUDA device."""
        return self._meta.device.type == "cuda"

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """Whether the tensor has no values in the processes."""
        return self._meta.device.type == "meta"

    @property
    def data(self) -> Tensor:
        """The same values without gradients; assigning to it replaces the values."""
        return self.detach()  # type: ignore[return-value]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if not isinstance(value, Tensor):
            raise LocalTensorError(f"{self} cannot hold a local tensor: put it on the mesh first")
        own: Any = value.detach()
        set_meta(self, own._meta)
        self._ref, self._known_scalar = own._ref, None

    def reduce(
        self,
        dims: str | Sequence[str] | None = None,
        reduction: str = "sum",
        scatter: bool = False,
        out: Tensor | None = None,
        grad: str = "sum",
    ) -> Tensor:
        """Combine the values of all processes along dimensions of the mesh; see `reduce`."""
        return backend_slot.backend.reduce(
            self, dims, reduction=reduction, scatter=scatter, out=out, grad=grad
        )

    def reduce_(self, dims: str | Sequence[str] | None = None, reduction: str = "sum") -> Tensor:
        """Like `reduce`, but write the result into this tensor."""
        return backend_slot.backend.reduce_(self, dims, reduction=reduction)

    def to_mesh(self, mesh: DeviceMesh, stream: Stream | None = None) -> Tensor:
        """Move the tensor to other processes; see `to_mesh`."""
        return backend_slot.backend.to_mesh(self, mesh, stream)

    def fetch(self, **coordinates: int) -> Future[torch.Tensor]:
        """Fetch the value of one process; see `fetch_shard`."""
        return backend_slot.backend.fetch_shard(self, coordinates)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        meta = self._meta
        parts = [f"shape={tuple(meta.shape)}", f"dtype={meta.dtype}", f"mesh={meta.mesh}"]
        if meta.mesh._stream_slots.number:
            parts.append(f"stream={self.stream.name}")
        if self.requires_grad:
            parts.append("requires_grad=True")
        return f"mesh_tensor.Tensor({', '.join(parts)})"

    def __format__(self, how: str) -> str:
        # A scalar is formatted as its number, like other scalars, if the processes agree on it.
        return format(self.item() if how and not self.dim() else repr(self), how)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RequiresTensorEngine(
            "a distributed tensor cannot be pickled: get its value with mesh_tensor.inspect, or"
            " spawn the actor first and pass the tensor to an endpoint as a separate argument"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            raise RuntimeError("only leaf tensors can be copied: detach it first")
        copied: Any = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        made: Tensor = copied
        return made


def wrap(meta: Meta, ref: Ref) -> Tensor:
    """Create the tensor for a value."""
    made: Tensor = torch.Tensor._make_wrapper_subclass(
        Tensor,
        meta.shape,
        meta.strides,
        meta.offset,
        None,
        meta.dtype,
        meta.layout,
        meta.visible_device,
    )
    made._meta = meta
    made._ref = ref
    if meta.lazy:
        set_lazy(made, meta.lazy)
    return made


def set_meta(tensor: Tensor, meta: Meta) -> None:
    """Change the shape or other metadata of a tensor."""
    if tensor._meta is meta:
        return
    with torch._C._DisableTorchDispatch():
        _data.__set__(tensor, wrap(meta, tensor._ref))
    tensor._meta = meta
