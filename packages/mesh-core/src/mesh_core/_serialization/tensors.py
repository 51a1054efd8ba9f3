"""How torch tensors travel: the memory beside the message, what describes it inside.

A storage that several tensors of one message share is sent once and shared there as well. Of a
storage that is larger than what its tensors reach, only what they reach is sent: a batch that is a
slice of the data set costs the slice. Tensors on an accelerator arrive on the CPU.

torch is never imported here: the reducers are made when one of its tensors is met, and on the other
side the reference to a class of torch, inside the pickle, has imported it.
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

# Where a span begins; no element is wider, so that every type's elements stay whole.
_ALIGN = 16
# Less waste than this is not worth pickling the message a second time.
_WASTE_MIN = 4_096


class _Span:
    """The part of one storage that is sent, and what the message's tensors reach of it."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.start, self.end = 0, storage.nbytes()
        self.reached_start, self.reached_end = self.end, 0
        self.reached = 0
        self.tensors = 0
        self.is_compacted = False

    def reach(self, start: int, end: int, nbytes: int) -> None:
        """Notes a tensor whose elements take `nbytes` within these bounds."""
        self.reached_start = min(self.reached_start, start)
        self.reached_end = max(self.reached_end, end)
        self.reached += nbytes
        self.tensors += 1

    def trim(self) -> bool:
        """Narrows itself to what is reached, and says whether that saves anything worthwhile."""
        start = self.reached_start // _ALIGN * _ALIGN
        end = max(start, self.reached_end)
        # One tensor alone has no sharing to lose: its gaps need not be sent either.
        self.is_compacted = self.tensors == 1 and end - start - self.reached >= _WASTE_MIN
        if self.end - self.start - (end - start) >= _WASTE_MIN:
            self.start, self.end = start, end
            return True
        return self.is_compacted


class Spans:
    """The storages of one message, by where they lie.

    A message is pickled once with whole storages, which copies none of them; when it turns out that
    much of one is reached by no tensor, it is pickled again with that one trimmed.
    """

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], _Span] = {}
        self.is_trimmed = False

    def of(self, storage: Any) -> _Span:
        """Gives the span for a storage, the same each time."""
        key = (storage.data_ptr(), storage.nbytes())
        span = self._spans.get(key)
        if span is None:
            span = self._spans[key] = _Span(storage)
        return span

    def trim(self) -> bool:
        """Narrows the spans to what is reached, and says whether to pickle the message again."""
        if not self.is_trimmed:
            self.is_trimmed = True in [span.trim() for span in self._spans.values()]
            return self.is_trimmed
        return False


def tensor_reducers() -> dict[type, Reducer]:
    """Gives the reducers for torch's types, which must be imported already."""
    torch = sys.modules["torch"]
    return {
        torch.Tensor: _reduce_tensor,
        torch.nn.Parameter: _reduce_parameter,
        torch.UntypedStorage: _reduce_storage,
        torch.storage.TypedStorage: _reduce_typed_storage,
        _Span: _reduce_span,
    }


def _reduce_tensor(pickler: Any, tensor: Any) -> Any:
    """Reduces a dense tensor; torch's own way, with storages done our way, serves for the rest."""
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
    # What arrives is here, whatever a mode of this thread makes of new tensors.
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
    # torch has imported ctypes long since; a numpy array would do, but torch works without numpy.
    from ctypes import c_ubyte

    nbytes = span.end - span.start
    if nbytes == 0:
        return type(span.storage), (0,)
    window = (c_ubyte * nbytes).from_address(span.storage.data_ptr() + span.start)
    window.owner = span.storage  # keeps the memory while a buffer looks at it
    return _storage, (type(span.storage), PickleBuffer(window))


def _storage(_cls: Any, buffer: Any) -> Any:
    """Makes a storage over a buffer, which it can write to if the buffer is writable.

    The class is there because naming it has imported torch.
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
