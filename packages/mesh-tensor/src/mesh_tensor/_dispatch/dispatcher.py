"""Translates a PyTorch operation to instructions, with a cache lookup by its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mesh_tensor._errors import LocalTensorError
from mesh_tensor._mesh.activation import active_mesh, active_stream, check_stream
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._mesh.device_mesh import DeviceMesh

__all__ = ["dispatch", "dispatch_in_mode"]

#: Local tensors of up to this size, in bytes, are sent implicitly with an operation.
LOCAL_BYTES_MAX = 1 << 16

_TRUE, _FALSE = object(), object()
_LIST, _TUPLE, _DICT = object(), object(), object()
#: Represents an argument that cannot be distinguished from others by its value.
_UNKEYED = object()

#: For each dtype of a Python number, a scalar of a smaller dtype of the same category.
_LESSER = {
    torch.float64: torch.zeros((), dtype=torch.float32, device="cpu"),
    torch.int64: torch.zeros((), dtype=torch.int32, device="cpu"),
    torch.complex128: torch.zeros((), dtype=torch.complex64, device="cpu"),
}

_item = torch.ops.aten._local_scalar_dense.default
_lift = torch.ops.aten.lift_fresh.default


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Issue an operation on at least one distributed tensor."""
    if func is _item:
        return args[0]._meta.mesh._engine.item(args[0])
    key: list[Any] = [func]
    operands: list[Tensor] = []
    numbers: list[float] = []
    try:
        _add_to_key(args, key, operands, numbers)
        if kwargs:
            for name, argument in kwargs.items():
                key.append(name)
                _add_to_key((argument,), key, operands, numbers)
    except LocalTensorError:
        args, kwargs = _convert_local_tensors(func, args, kwargs)
        return dispatch(func, args, kwargs)
    mesh = operands[0]._meta.mesh
    stream = active_stream.get()
    if stream is not None and stream is not mesh._stream_slots.stream:
        check_stream(mesh)
    return mesh._engine.issue(mesh, tuple(key), operands, numbers, func, args, kwargs)


def dispatch_in_mode(
    func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Issue an operation while a mesh is active; purely local operations run here."""
    if Tensor in types:
        return dispatch(func, args, kwargs)
    mesh = active_mesh.get()
    if mesh is None or (types and func is not _lift):
        return func(*args, **kwargs)
    if func is _lift:
        return mesh._engine.put(mesh, args[0], is_literal=True)
    if not _makes_tensors(func):
        return func(*args, **kwargs)
    key: list[Any] = [func, mesh]
    _add_to_key(args, key, [], None)
    for name, argument in kwargs.items():
        key.append(name)
        _add_to_key((argument,), key, [], None)
    return mesh._engine.issue(mesh, tuple(key), [], [], func, args, kwargs)


def _add_to_key(
    arguments: Sequence[Any], key: list[Any], operands: list[Tensor], numbers: list[float] | None
) -> None:
    """Add arguments to the key; tensors are represented by their metadata.

    If `numbers` is given, floats are appended to it, and only their type is in the key: floats
    change from step to step, and the shape of the result does not depend on them.
    """
    for one in arguments:
        kind = type(one)
        if kind is Tensor:
            key.append(one._meta)
            operands.append(one)
        elif kind is int or one is None or kind is str:
            key.append(one)
        elif kind is bool:
            # True and False would be equal to 1 and 0.
            key.append(_TRUE if one else _FALSE)
        elif kind is float and numbers is not None:
            key.append(float)
            numbers.append(one)
        elif kind is float:
            # 1.0 must differ from 1, 0.0 must differ from -0.0, and nan must equal nan.
            key.append((one.hex(),))
        elif kind is list or kind is tuple:
            key.append(_LIST if kind is list else _TUPLE)
            key.append(len(one))
            _add_to_key(one, key, operands, None)
        elif isinstance(one, torch.Tensor):
            raise LocalTensorError
        elif kind is dict:
            key.append(_DICT)
            _add_to_key([part for pair in one.items() for part in pair], key, operands, None)
        elif kind is complex:
            key.append((one.real.hex(), one.imag.hex()))
        elif isinstance(one, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            key.append(one)
        else:
            key.append(_UNKEYED)


def _convert_local_tensors(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace small local tensors by copies on the mesh of the other operands.

    Raises:
        LocalTensorError: A local tensor is too large.
    """
    flat, spec = torch.utils._pytree.tree_flatten((args, kwargs))
    mesh = next(one._meta.mesh for one in flat if type(one) is Tensor)
    for place, one in enumerate(flat):
        if isinstance(one, torch.Tensor) and type(one) is not Tensor:
            flat[place] = _converted(func, mesh, one)
    made: tuple[tuple[Any, ...], dict[str, Any]] = torch.utils._pytree.tree_unflatten(flat, spec)
    return made


def _converted(func: Any, mesh: DeviceMesh, tensor: torch.Tensor) -> Tensor | float | int | complex:
    if not tensor.shape and _is_number(tensor):
        return tensor.item()
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes > LOCAL_BYTES_MAX:
        raise LocalTensorError(
            f"{func} got a local tensor of {nbytes} bytes together with tensors of {mesh}: put it"
            " on the mesh with mesh_tensor.put"
        )
    return mesh._engine.put(mesh, tensor)


def _is_number(tensor: torch.Tensor) -> bool:
    """Return whether PyTorch created a tensor from a number (weak in type promotion)."""
    lesser = _LESSER.get(tensor.dtype)
    if lesser is None or tensor.device.type != "cpu":
        return False
    return torch.result_type(tensor, lesser) is lesser.dtype


def _makes_tensors(func: Any) -> bool:
    schema = func._schema
    return any(isinstance(one.type, torch.TensorType) for one in schema.returns) and not any(
        isinstance(one.type, torch.TensorType) for one in schema.arguments
    )
