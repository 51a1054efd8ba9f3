"""Pickling of torch tensors: memory in separate buffers, metadata in the message.

A storage that several tensors of a message share is sent once, and the tensors share it at the
receiver as well. If a storage is larger than the part that its tensors use, only that part is sent:
a batch that is a slice of a data set costs only the slice. Tensors on an accelerator arrive on the
CPU.

This module never imports torch: the reducers are created when the first tensor is pickled. At the
receiver, the reference to a torch class in the pickle imports torch.
"""

from __future__ import annotations

import sys
from _pickle import PickleBuffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Reducer = Callable[[Any, Any], Any]

__all__ = ["Spans", "tensor_reducers"]

# Alignment of the start of a span in bytes. No element is wider, so elements are never split.
_ALIGN = 16
# Minimum waste in bytes that makes it worthwhile to pickle the message a second time.
_WASTE_MIN = 4_096


class _Span:
    """The part of a storage that is sent, and the bytes that the tensors of the message use."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.start, self.end = 0, storage.nbytes()
        self.reached_start, self.reached_end = self.end, 0
        self.reached = 0
        self.tensors = 0
        self.is_compacted = False

    def reach(self, start: int, end: int, nbytes: int) -> None:
        """Record a tensor whose elements occupy `nbytes` bytes between `start` and `end`."""
        self.reached_start = min(self.reached_start, start)
        self.reached_end = max(self.reached_end, end)
        self.reached += nbytes
        self.tensors += 1

    def trim(self) -> bool:
        """Narrow the span to the used part; return whether that saves a worthwhile amount."""
        start = self.reached_start // _ALIGN * _ALIGN
        end = max(start, self.reached_end)
        # A single tensor shares its storage with no other, so its gaps do not have to be sent.
        self.is_compacted = self.tensors == 1 and end - start - self.reached >= _WASTE_MIN
        if self.end - self.start - (end - start) >= _WASTE_MIN:
            self.start, self.end = start, end
            return True
        return self.is_compacted


class Spans:
    """The storages of one message, by address.

    A message is first pickled with whole storages, which copies none of them. If the tensors leave
    a large part of a storage unused, the message is pickled again with that storage trimmed.
    """

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], _Span] = {}
        self.is_trimmed = False

    def of(self, storage: Any) -> _Span:
        """Return the span of a storage; the same span each time."""
        key = (storage.data_ptr(), storage.nbytes())
        span = self._spans.get(key)
        if span is None:
            span = self._spans[key] = _Span(storage)
        return span

    def trim(self) -> bool:
        """Narrow the spans to the used parts; return whether the message must be pickled again."""
        if not self.is_trimmed:
            self.is_trimmed = True in [span.trim() for span in self._spans.values()]
            return self.is_trimmed
        return False


def tensor_reducers() -> dict[type, Reducer]:
    """Return the reducers for torch's types; torch must already be imported."""
    torch = sys.modules["torch"]
    return {
        torch.Tensor: _reduce_tensor,
        torch.nn.Parameter: _reduce_parameter,
        torch.UntypedStorage: _reduce_storage,
        torch.storage.TypedStorage: _reduce_typed_storage,
        _Span: _reduce_span,
    }


def _reduce_tensor(pickler: Any, tensor: Any) -> Any:
    """Reduce a dense tensor; torch itself reduces other tensors, and this module their storages."""
    device = tensor.device.type
    if (
        tensor.layout is not sys.modules["torch"].strided
        or device == "meta"
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.__dict__
        or tensor._backward_hooks
    ):
        return NotImplemented
    requires_grad = tensor.requires_grad
    if device != "cpu":
        tensor = tensor.detach().cpu()
    spans = _spans_of(pickler)
    span = spans.of(tensor.untyped_storage())
    if span.is_compacted:
        tensor = tensor.detach().contiguous().clone()
        span = _Span(tensor.untyped_storage())
    width = tensor.element_size()
    shape, strides, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    if not spans.is_trimmed and 0 not in shape:
        steps = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        start = offset * width
        span.reach(start, start + (steps + 1) * width, tensor.numel() * width)
    offset -= span.start // width
    return _tensor, (span, tensor.dtype, max(offset, 0), shape, strides, requires_grad)


def _tensor(
    storage: Any,
    dtype: Any,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
) -> Any:
    torch = sys.modules["torch"]
    # A received tensor is on the CPU even if a mode of this thread redirects new tensors.
    with torch._C._DisableTorchDispatch():
        tensor = torch.empty(0, dtype=dtype, device="cpu")
        tensor.set_(storage, offset, shape, strides)
        return tensor.requires_grad_() if requires_grad else tensor


def _reduce_parameter(_pickler: Any, parameter: Any) -> Any:
    if parameter.__dict__ or parameter._backward_hooks:
        return NotImplemented
    return type(parameter), (parameter.data, parameter.requires_grad)


def _reduce_storage(pickler: Any, storage: Any) -> Any:
    if storage.device.type == "meta":
        return NotImplemented
    if storage.device.type != "cpu":
        storage = storage.cpu()
    span = _spans_of(pickler).of(storage)
    span.reach(0, storage.nbytes(), storage.nbytes())
    return _same, (span,)


def _reduce_typed_storage(_pickler: Any, storage: Any) -> Any:
    return _typed_storage, (type(storage), storage._untyped_storage, storage.dtype)


def _typed_storage(cls: Any, storage: Any, dtype: Any) -> Any:
    return cls(wrap_storage=storage, dtype=dtype, _internal=True)


def _reduce_span(_pickler: Any, span: _Span) -> Any:
    nbytes = span.end - span.start
    if nbytes == 0:
        return type(span.storage), (0,)
    # torch has already imported ctypes. A numpy array would also work, but torch can run without
    # numpy.
    window = (sys.modules["ctypes"].c_ubyte * nbytes).from_address(
        span.storage.data_ptr() + span.start
    )
    window.owner = span.storage  # keeps the memory alive while a buffer refers to it
    return _storage, (type(span.storage), PickleBuffer(window))


def _storage(_cls: Any, buffer: Any) -> Any:
    """Create a storage over a buffer; a read-only buffer is copied.

    The parameter `_cls` exists because unpickling the reference to the class imports torch.
    """
    torch = sys.modules["torch"]
    if memoryview(buffer).readonly:
        buffer = bytearray(buffer)
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _spans_of(pickler: Any) -> Spans:
    if pickler.spans is None:
        pickler.spans = Spans()
    spans: Spans = pickler.spans
    return spans


def _same(value: Any) -> Any:
    return value
