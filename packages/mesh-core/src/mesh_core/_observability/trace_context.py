"""The trace and span in which the current code runs, across processes.

Traces and spans have ids as defined by W3C Trace Context. While there is a subscriber to events,
each message contains the span in which it was sent. The code that serves the message runs in that
span until it opens a new one.
"""

from __future__ import annotations

import os
import re
from contextvars import ContextVar

from mesh_core._runtime.serving import serving

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

__all__ = [
    "SpanIdentity",
    "TraceContext",
    "current_span",
    "enter_span",
    "new_span",
    "origin",
    "with_trace_context",
]

_SAMPLED = 1
_SAMPLED_ONLY = bytes([_SAMPLED])
_NOBODY = bytes(8)
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
# The increment of SplitMix64: it is odd, so different numbers give different, scattered ids.
_SPREAD, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class SpanIdentity:
    """Identity of a span that begins; the `subject` of the event `span_begin`.

    Attributes:
        number: The number of the span in this process; 0 for a span of another process.
        served_call: The reply port of the message that was being served when the span began; 0 for
            none.
    """

    __slots__ = ("_encoded", "_parent", "number", "served_call")

    def __init__(
        self, number: int, encoded: bytes, parent: bytes | None = None, served_call: int = 0
    ) -> None:
        self.number: int = number
        self.served_call: int = served_call
        # The encoding in messages: 16 bytes of trace id, 8 of span id, 1 of flags.
        self._encoded = encoded
        self._parent = parent

    @property
    def context(self) -> TraceContext:
        """The context by which other processes refer to the span."""
        return _decoded(self._encoded)

    @property
    def parent(self) -> TraceContext | None:
        """The enclosing span, or the span in which the message being served was sent."""
        return None if self._parent is None else _decoded(self._parent)


_current: ContextVar[SpanIdentity | None] = ContextVar("mesh_core.span", default=None)
#: Returns the innermost span of this code; None outside of spans.
current_span = _current.get
#: Sets the innermost span, or restores the previous one.
enter_span = _current.set


class TraceContext:
    """Reference to a span: an immutable value that can be sent to other processes.

    Attributes:
        trace_id: The id of the trace: 32 hexadecimal digits.
        span_id: The id of the span: 16 hexadecimal digits.
        is_sampled: Whether the origin of the trace requests that it be recorded.

    Args:
        trace_id: See above.
        span_id: See above.
        is_sampled: See above.

    Raises:
        ValueError: An id does not have the right number of lowercase hexadecimal digits, or is all
            zeros.

    Example:
        >>> from mesh_core import TraceContext
        >>> TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7").traceparent
        '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
    """

    __slots__ = ("_encoded",)

    def __init__(self, trace_id: str, span_id: str, is_sampled: bool = True) -> None:
        text = f"00-{trace_id}-{span_id}-{'01' if is_sampled else '00'}"
        self._encoded = _encoded(text)

    @property
    def trace_id(self) -> str:
        """The id of the trace: 32 hexadecimal digits."""
        return self._encoded[:16].hex()

    @property
    def span_id(self) -> str:
        """The id of the span: 16 hexadecimal digits."""
        return self._encoded[16:24].hex()

    @property
    def is_sampled(self) -> bool:
        """Whether the origin of the trace requests that it be recorded."""
        return bool(self._encoded[24] & _SAMPLED)

    @property
    def traceparent(self) -> str:
        """The value of the HTTP header `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self._encoded[24]:02x}"

    @staticmethod
    def current() -> TraceContext | None:
        """Return the span of the current code, to propagate it by other means than calls.

        This is the innermost recorded `span`, else the span of the caller whose message is being
        served, else None.
        """
        encoded = _encoded_now()
        return None if encoded is None else _decoded(encoded)

    @classmethod
    def from_traceparent(cls, text: str) -> TraceContext:
        """Parse the HTTP header `traceparent`.

        Raises:
            ValueError: The text is not a valid header value.
        """
        return _decoded(_encoded(text.strip()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TraceContext) and self._encoded == other._encoded

    def __hash__(self) -> int:
        return hash(self._encoded)

    def __repr__(self) -> str:
        return f"<TraceContext {self.traceparent}>"

    def __reduce__(self) -> Any:
        return _decoded, (self._encoded,)


class with_trace_context:
    """Run a block in an external span, such as the span of an HTTP request.

    The spans of the block, and its calls, become children of that span. Tasks inherit it like any
    context variable.

    Args:
        context: The span; None changes nothing.

    Example:
        >>> from mesh_core import TraceContext, with_trace_context
        >>> header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        >>> with with_trace_context(TraceContext.from_traceparent(header)):
        ...     TraceContext.current().span_id
        '00f067aa0ba902b7'
    """

    __slots__ = ("_context", "_outer")

    def __init__(self, context: TraceContext | None) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._outer = _current.get()
        if self._context is not None:
            _current.set(SpanIdentity(0, self._context._encoded))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Do not use a token: a generator may end in a different context than it began in.
        _current.set(self._outer)


def origin() -> bytes | None:
    """Return the origin field of a message; see docs/protocol/call.md."""
    current = serving()
    span = _current.get()
    if span is not None:
        return (_NOBODY if current is None else current.cell.sender) + span._encoded
    if current is None:
        return None
    message = current.message
    trace = None if message is None else message.trace
    return current.cell.sender if trace is None else current.cell.sender + trace


def new_span(number: int) -> SpanIdentity:
    """Create the identity of a span: a child of the enclosing span, or the root of a trace.

    Args:
        number: The number of the span, unique in the process.
    """
    current, span = serving(), _current.get()
    message = None if current is None else current.message
    served_call = 0 if message is None else message.from_port
    around = span._encoded if span is not None else None if message is None else message.trace
    own = _ids.span_id(number)
    if around is None:
        return SpanIdentity(number, _ids.trace + own + own + _SAMPLED_ONLY, None, served_call)
    return SpanIdentity(number, around[:16] + own + around[24:], around, served_call)


class _Ids:
    """Generates ids from numbers that are unique across processes."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Choose new random bases, so that the ids differ from the previous ones."""
        self.trace = os.urandom(8)
        self._base = int.from_bytes(os.urandom(8), "big")

    def span_id(self, number: int) -> bytes:
        """Return the id of a span; never all zeros."""
        spread = (self._base + number) * _SPREAD & _MASK
        return (spread or 1).to_bytes(8, "big")


_ids = _Ids()
os.register_at_fork(after_in_child=_ids.begin)


def _encoded_now() -> bytes | None:
    span = _current.get()
    if span is not None:
        return span._encoded
    current = serving()
    message = None if current is None else current.message
    return None if message is None else message.trace


def _encoded(text: str) -> bytes:
    found = _TRACEPARENT.fullmatch(text)
    version, trace_id, span_id, flags, rest = found.groups() if found else ("ff",) * 5
    # Later versions append fields; version ff is invalid.
    is_known = version != "ff" and (version != "00" or rest is None)
    if not is_known or not trace_id.strip("0") or not span_id.strip("0"):
        raise ValueError(
            f"{text!r} is not a trace context: write it like "
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, ids not all zeros"
        )
    return bytes.fromhex(trace_id + span_id + flags)


def _decoded(encoded: bytes) -> TraceContext:
    made: TraceContext = object.__new__(TraceContext)
    made._encoded = encoded
    return made
