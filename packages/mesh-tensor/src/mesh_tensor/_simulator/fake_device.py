"""Devices that are only labels, used like real ones: `device="cuda"` without a GPU.

Programs use tensors on such devices as usual, but PyTorch sees them as `meta` tensors and therefore
needs neither a driver nor a CUDA build. Two modes correct the resulting differences: one prevents
PyTorch from looking for the driver, and the other intercepts the few functions that select their
implementation by the device.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["labels"]

_aten = torch.ops.aten
#: Parses the arguments of `tensor.to`. It is missing from PyTorch's stubs.
_parse_to: Callable[..., Any] = torch._C.__dict__["_nn"]._parse_to
_attention = torch.nn.functional.scaled_dot_product_attention


class _NoDriver(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Forwards all operations; PyTorch initializes no device while this mode key is active."""

    _mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return func(*args, **(kwargs or {}))


class _ByDevice(TorchFunctionMode):
    """Replaces functions that select their implementation by the device of a tensor."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        own = _OWN.get(func)
        kwargs = kwargs or {}
        if own is None:
            return func(*args, **kwargs)
        return own(func, *args, **kwargs)


def _to(func: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if type(tensor) is not Tensor:
        return func(tensor, *args, **kwargs)
    if args and isinstance(args[0], torch.Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    copy = kwargs.pop("copy", False)
    device, dtype, non_blocking, memory_format = _parse_to(*args, **kwargs)
    dtype = dtype or tensor.dtype
    if device is None or _is_same(device, tensor.device):
        # The device does not change: only convert the dtype.
        plain: dict[str, Any] = {"copy": copy}
        if memory_format is not None:
            plain["memory_format"] = memory_format
        return func(tensor, dtype, **plain)
    return _aten._to_copy.default(
        tensor,
        dtype=dtype,
        device=device,
        non_blocking=non_blocking,
        memory_format=memory_format,
    )


def _cuda(
    func: Callable[..., Any], tensor: torch.Tensor, device: Any = None, *_: Any, **__: Any
) -> Any:
    if isinstance(device, int):
        device = torch.device("cuda", device)
    return tensor.to(device or "cuda")


def _from_data(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    device = kwargs.pop("device", None)
    made = func(*args, **kwargs)
    return made if device is None else made.to(device)


def _attention_result(
    func: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute attention with fused kernels, which do not store all scores in memory at once."""
    is_fused = (
        type(query) is Tensor and query._meta.visible_device.type == "meta" and not enable_gqa
    )
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    if not is_fused or query.dim() != 4:
        return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    if is_half and attn_mask is None:
        return _aten._scaled_dot_product_flash_attention.default(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    needs_gradients = torch.is_grad_enabled() and any(
        one.requires_grad for one in (query, key, value)
    )
    return _aten._scaled_dot_product_efficient_attention.default(
        query, key, value, attn_mask, needs_gradients, dropout_p, is_causal, scale=scale
    )[0]


def _drop(
    func: Callable[..., Any],
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Any:
    is_fused = type(input) is Tensor and input._meta.visible_device.type == "meta" and training
    if not is_fused or inplace or not 0 < p < 1:
        return func(input, p, training, inplace)
    return _aten.native_dropout.default(input, p, True)[0]


def _is_same(device: torch.device, other: torch.device) -> bool:
    return device.type == other.type and (device.index or 0) == (other.index or 0)


_OWN: dict[Any, Callable[..., Any]] = {
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.tensor: _from_data,
    torch.as_tensor: _from_data,
    _attention: _attention_result,
    torch.nn.functional.dropout: _drop,
}


class _Entered(threading.local):
    """The nesting depth of `labels` in this thread."""

    times = 0


_entered = _Entered()


@contextmanager
def labels() -> Iterator[None]:
    """Treat devices as labels in this thread until the `with` block ends."""
    if _entered.times:
        yield
        return
    lifted = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    _entered.times += 1
    try:
        with _NoDriver(), _ByDevice():  # type: ignore[no-untyped-call]
            yield
    finally:
        _entered.times -= 1
        torch._C._set_only_lift_cpu_tensors(lifted)
